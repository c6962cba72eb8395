"""Models under torch's wrappers in a group of one rank; their updates are those of any group."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from support.checkpointing.checkpoints import gathered
from support.distributed.blocks import DebugBlock, Mixer, Stack, gradients_of
from support.distributed.models import wrapped
from support.distributed.processes import error_of
from support.training.models import Net, batches, seeded
from support.training.optimizers import OPTIMIZERS
from support.training.reads import Reads
from support.training.steps import make_step
from support.trees import equal_trees
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.torch_version import TorchVersion

from plateau_jax import CurveWarning, DataClock
from torch_bridge import Checkpoints, TrainStep, checkpoint_activations, distribute
from torch_bridge.distributed.plain_names import load_plain_state, plain_state

(BATCH,) = batches(1)

# A function that wraps a model.
Wrapper = Callable[[Any], nn.Module]


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded(model: nn.Module, **options: Any) -> Any:
    return fully_shard(model, **options)


def under_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


by_ddp_or_fsdp = pytest.mark.parametrize("wrap", [under_ddp, sharded])


def test_versions_of_modules_are_under_plain_names() -> None:
    """Torch keeps them in an attribute of a state. BatchNorm loads other keys if it is absent."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    versions = cast("Any", model.state_dict())._metadata
    state: Any = plain_state(under_ddp(model))
    assert state._metadata == versions


# Models that a step rejects.


def check_rejected(model: nn.Module, message: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        make_step(model=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "initial_lr" not in optimizer.param_groups[0]


def test_part_in_ddp_is_rejected() -> None:
    model = nn.Sequential(DistributedDataParallel(Net()))
    check_rejected(model, "DistributedDataParallel")


def test_ddp_in_ddp_is_rejected() -> None:
    part = nn.Sequential(DistributedDataParallel(Net()))
    check_rejected(DistributedDataParallel(part), "DistributedDataParallel")


def test_sharded_part_is_rejected() -> None:
    check_rejected(nn.Sequential(sharded(Net())), "FSDPModule")


def test_parameters_that_fsdp_ignores_are_rejected() -> None:
    model = Net()
    sharded(model, ignored_params=set(model.first.parameters()))
    check_rejected(model, "sharded in part")


def test_parameter_that_ddp_ignores_is_rejected() -> None:
    model: Any = Net()
    ignored = ["first.weight"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    check_rejected(DistributedDataParallel(model), "does not average")


def test_parameter_that_is_a_dtensor_is_rejected() -> None:
    model: Any = Net()
    mesh = init_device_mesh("cpu", (1,))
    weight = distribute_tensor(model.first.weight.detach(), mesh, [Replicate()])
    model.first.weight = nn.Parameter(weight)
    check_rejected(model, "DTensors")


def test_model_over_two_meshes_is_rejected() -> None:
    model = Net()
    sharded(model.first, mesh=init_device_mesh("cpu", (1,)))
    sharded(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("copy", "shard")))
    check_rejected(model, "several meshes")


def test_divisor_of_gradients_is_rejected() -> None:
    model = Net()
    sharded(model).set_gradient_divide_factor(2.0)
    check_rejected(model, "averages over the 1 ranks")


def test_divisor_of_gradients_of_a_part_is_rejected() -> None:
    model = Net()
    sharded(model.first).set_gradient_divide_factor(1.0)
    check_rejected(sharded(model), "averages over the 1 ranks")


@by_ddp_or_fsdp
def test_cuda_graph_rejects_wrapped_model(wrap: Wrapper) -> None:
    message = r"^cuda_graph=True needs a model that is not wrapped for several ranks$"
    with pytest.raises(ValueError, match=message):
        make_step(model=wrap(Net()), cuda_graph=True)


# Updates.


@by_ddp_or_fsdp
def test_update_of_wrapped_model_reads_nothing(wrap: Wrapper) -> None:
    step = make_step(model=wrap(Net()), max_norm=0.1)
    step(BATCH)
    with Reads() as reads:
        step(BATCH, BATCH)
    # FSDP2 frees memory, and allocates it again, through storages.
    assert set(reads.names) <= {"untyped_storage"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_runs_on_sharded_parameters(name: str) -> None:
    """Or the step says that torch can't run it."""
    model: nn.Module = Net()
    if name == "muon":
        model = nn.Sequential(nn.Linear(3, 2, bias=False))
    if name in {
        "sgd",
        "momentum",
        "dampened",
        "nesterov",
        "adagrad",
        "adafactor",
        "rprop",
        "muon",
    }:
        with pytest.raises(ValueError, match="torch cannot run"):
            make_step(name, sharded(model))
        return
    step = make_step(name, sharded(model))
    for _ in range(3):
        step(BATCH)


# Errors in mid-update.


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def interrupt_backward(_: Any, __: Any, output: Tensor) -> None:
    output.register_hook(interrupt)


def in_forward(step: TrainStep, model: Any) -> Any:
    return model.first.register_forward_hook(interrupt)


def in_backward(step: TrainStep, model: Any) -> Any:
    return model.first.register_forward_hook(interrupt_backward)


def in_optimizer(step: TrainStep, model: Any) -> Any:
    return step.optimizer.register_step_pre_hook(interrupt)


@pytest.mark.parametrize("hook", [in_forward, in_backward, in_optimizer])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_step_rejects_calls_after_an_error(wrapper: str, hook: Callable[..., Any]) -> None:
    """Other ranks may wait in a collective, and torch's wrappers are in mid-pass."""
    model = Net()
    step = make_step(model=wrapped(wrapper, model))
    step(BATCH)
    state = step.state_dict()
    handle = hook(step, model)
    with pytest.raises(KeyboardInterrupt):
        step(BATCH)
    handle.remove()
    message = "restart the program from its last checkpoint"
    with pytest.raises(RuntimeError, match=message):
        step(BATCH)
    with pytest.raises(RuntimeError, match=message):
        step.state_dict()
    with pytest.raises(RuntimeError, match=message):
        step.load_state_dict(state)


@pytest.mark.parametrize("count", [None, -1, 2.5, torch.tensor(2.5), 2**62], ids=str)
@by_ddp_or_fsdp
def test_step_rejects_calls_after_a_wrong_count(wrap: Wrapper, count: Any) -> None:
    """Other ranks have begun this update: with its next batch, this rank would be one behind."""
    step = make_step(model=wrap(Net()), clock=DataClock(8))
    step(BATCH, count=4)
    with pytest.raises((TypeError, ValueError), match="count"):
        step(BATCH, count=count)
    with pytest.raises(RuntimeError, match="restart the program from its last checkpoint"):
        step(BATCH, count=4)


# Gradients that DDP does not average.


class Skipping(nn.Module):
    """Leaves out its last layer in micro-batches that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3)

    def forward(self, inputs: Tensor, uses_all: bool) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if uses_all:
            return self.last(hidden)
        return hidden


USES_ALL = torch.ones(4, 3), True
USES_FIRST = torch.ones(4, 3), False


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch).square().mean()


def loss_of_module(model: Any, batch: Any) -> Tensor:
    return loss_of(model.module, batch)


def loss_without_gradients(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        model(*batch)
    return loss_of_module(model, batch)


def right_loss(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    with torch.no_grad():
        model(*batch)  # an additional pass without gradients is allowed
    return loss


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrong_loss", [loss_of_module, loss_without_gradients])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_update_that_bypasses_ddp_is_rejected(wrong_loss: Any, is_compiled: bool) -> None:
    current_loss = right_loss

    def loss_fn(model: Any, batch: Any) -> Tensor:
        return current_loss(model, batch)

    used_loss_fn: Any = loss_fn
    if is_compiled:
        used_loss_fn = torch.compile(loss_fn, backend="eager")
    plain = Skipping()
    step = make_step(model=DistributedDataParallel(plain), loss_fn=used_loss_fn)
    step(USES_ALL)
    before = copy.deepcopy(plain.state_dict())
    current_loss = wrong_loss
    with pytest.raises(RuntimeError, match=r"loss_fn did not call it .* model\(inputs\)"):
        step(USES_ALL, USES_ALL)
    assert equal_trees(plain.state_dict(), before)


def test_ddp_may_be_told_that_layers_have_no_gradients() -> None:
    model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
    step = make_step(model=model, loss_fn=loss_of)
    step(USES_ALL, USES_FIRST)
    step(USES_ALL, USES_FIRST)


def check_not_averaged(step: TrainStep, plain: nn.Module, *micro_batches: Any) -> None:
    before = copy.deepcopy(plain.state_dict())
    message = r"not averaged the gradients: .*find_unused_parameters=True"
    with pytest.raises(RuntimeError, match=message):
        step(*micro_batches)
    assert equal_trees(plain.state_dict(), before)


def test_layer_that_is_left_out_is_rejected() -> None:
    plain = Skipping()
    step = make_step(model=DistributedDataParallel(plain), loss_fn=loss_of)
    check_not_averaged(step, plain, USES_ALL, USES_FIRST)


@pytest.mark.parametrize("updates", [0, 1])
def test_layer_that_is_frozen_after_wrapping_is_rejected(updates: int) -> None:
    plain = Skipping()
    step = make_step(model=DistributedDataParallel(plain), loss_fn=loss_of)
    for _ in range(updates):
        step(USES_ALL, USES_ALL)
    plain.last.requires_grad_(False)
    check_not_averaged(step, plain, USES_ALL, USES_ALL)


def test_layer_that_was_frozen_when_wrapped_is_rejected() -> None:
    plain = Net()
    plain.last.requires_grad_(False)
    model = DistributedDataParallel(plain)
    step = make_step(model=model)
    plain.last.requires_grad_(True)
    message = "does not average the gradients of some of the optimizer's"
    with pytest.raises(ValueError, match=message):
        step(BATCH)
    with pytest.raises(ValueError, match=message):
        make_step(model=model)


def test_step_under_no_sync_is_rejected() -> None:
    model = DistributedDataParallel(Net())
    step = make_step(model=model)
    with model.no_sync(), pytest.raises(RuntimeError, match=r"called under no_sync\(\)"):
        step(BATCH)


# A model that is not wrapped, on several ranks.


def warnings_of_two_ranks(model: nn.Sequential) -> list[warnings.WarningMessage]:
    """Build a step of the model, and one of its part, on one of two ranks."""
    with (
        warnings.catch_warnings(record=True) as caught,
        patch.object(distributed, "get_world_size", lambda: 2),
    ):
        warnings.simplefilter("always")
        make_step(model=model)
        make_step(model=model[0])
    for warning in caught:
        assert warning.category is CurveWarning
        assert Path(warning.filename).name == "steps.py"
        assert "distribute(model, None)" in str(warning.message)
    return caught


def test_unwrapped_model_warns() -> None:
    model = nn.Sequential(Net())
    make_step(model=model)  # not on one rank
    assert len(warnings_of_two_ranks(model)) == 2


def test_unwrapped_part_warns_unless_intended() -> None:
    model = nn.Sequential(Net())
    distribute(model[0], None, device="cpu")
    assert len(warnings_of_two_ranks(model)) == 1


def test_unwrapped_model_warns_unless_intended() -> None:
    model = nn.Sequential(Net())
    assert distribute(model, None, device="cpu") is model
    assert warnings_of_two_ranks(model) == []


# Activation checkpointing.


def shard_each(model: nn.Module, kind: type[nn.Module], **options: Any) -> None:
    for module in model.modules():
        if isinstance(module, kind):
            sharded(module, **options)


def ddp_with_unused_layers(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp_of_blocks(model: nn.Module) -> nn.Module:
    shard_each(model, DebugBlock)
    return sharded(model)


def fsdp_within_blocks(model: nn.Module) -> nn.Module:
    shard_each(model, Mixer)
    shard_each(model, DebugBlock)
    return sharded(model)


def fsdp_within_blocks_alone(model: nn.Module) -> nn.Module:
    shard_each(model, Mixer)
    return sharded(model)


def fsdp_that_keeps_parameters(model: nn.Module) -> nn.Module:
    shard_each(model, DebugBlock, reshard_after_forward=False)
    return sharded(model, reshard_after_forward=False)


@pytest.mark.parametrize("blocks", [DebugBlock, (DebugBlock, Mixer)])
@pytest.mark.parametrize(
    "wrap",
    [
        under_ddp,
        ddp_with_unused_layers,
        sharded,
        fsdp_of_blocks,
        fsdp_within_blocks,
        fsdp_within_blocks_alone,
        fsdp_that_keeps_parameters,
    ],
)
def test_checkpointed_model_has_same_bits(wrap: Wrapper, blocks: Any) -> None:
    """Whether it is checkpointed before or after wrapping."""
    order = (0, 1, 0)
    is_within_blocks = wrap in (fsdp_within_blocks, fsdp_within_blocks_alone)
    if is_within_blocks and TorchVersion(torch.__version__) < "2.11":
        # The second pass of a block that is used again would find the modules inside it resharded.
        order = (0, 1)
    plain = wrap(Stack(order=order))
    before = wrap(checkpoint_activations(Stack(order=order), blocks))
    after = checkpoint_activations(wrap(Stack(order=order)), blocks)
    expected = gradients_of(plain)
    assert equal_trees(gradients_of(before), expected)
    assert equal_trees(gradients_of(after), expected)


# States.


class Module(nn.Module):
    """A model with a part named like a wrapper's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.module(inputs))


def unwrapped(model: nn.Module) -> nn.Module:
    return model


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_part(model: Any) -> nn.Module:
    model.module[0] = compiled(model.module[0])
    return model


def checkpointed(model: Any) -> nn.Module:
    """Wrap a layer as torch does, which adds a part to its parameters' names."""
    model.module[0] = cast("Any", checkpoint_wrapper).checkpoint_wrapper(model.module[0])
    return model


def data_parallel(model: nn.Module) -> nn.Module:
    return DataParallel(model)


def compiled_data_parallel(model: nn.Module) -> nn.Module:
    return compiled(DataParallel(model))


def data_parallel_compiled(model: nn.Module) -> nn.Module:
    return DataParallel(compiled(model))


def ddp_of_compiled(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(compiled(model))


def compiled_ddp(model: nn.Module) -> nn.Module:
    return compiled(DistributedDataParallel(model))


def compiled_fsdp(model: nn.Module) -> nn.Module:
    return compiled(sharded(model))


def ddp_of_checkpointed(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(checkpointed(model))


def fsdp_of_checkpointed(model: nn.Module) -> nn.Module:
    return sharded(checkpointed(model))


EVERY_WRAPPER: list[Wrapper] = [
    unwrapped,
    compiled,
    compiled_in_part,
    data_parallel,
    compiled_data_parallel,
    data_parallel_compiled,
    under_ddp,
    ddp_of_compiled,
    compiled_ddp,
    sharded,
    compiled_fsdp,
    ddp_of_checkpointed,
    fsdp_of_checkpointed,
]


def step_over(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return make_step(model=model, optimizer=optimizer)


def step_in_reverse_order(model: nn.Module) -> TrainStep:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters[::-1], lr=0.1)
    return make_step(model=model, optimizer=optimizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("wrap_saved", EVERY_WRAPPER)
def test_state_loads_under_every_wrapper(tmp_path: Path, wrap_saved: Wrapper) -> None:
    """Under any wrapper a step and a model are saved alone; they load under any other."""
    saved = wrap_saved(Module(1))
    step = step_over(saved)
    step(BATCH)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, model=saved, wait=True)
    plain: Any = plain_state(saved)
    assert plain._metadata["module.1"] == {"version": 2}  # of the batch normalization
    state = step.state_dict()
    assert plain.keys() == state["model"].keys() == Module(1).state_dict().keys()
    expected = gathered(plain)

    # A state may have the wrapper's names, as `model.state_dict()` has them.
    state_with_names_of_wrapper = gathered(saved.state_dict())
    again = wrap_saved(Module(2))
    step_over(again).load_state_dict({**state, "model": state_with_names_of_wrapper})
    assert equal_trees(gathered(plain_state(again)), expected)

    for wrap in EVERY_WRAPPER:
        by_load = wrap(Module(2))
        checkpoints.load(model=by_load, partial=True)
        by_step = wrap(Module(2))
        checkpoints.load(step=step_over(by_step), partial=True)
        by_load_model = wrap(Module(2))
        checkpoints.load_model(by_load_model)
        by_load_model_of_part = wrap(Module(2))
        checkpoints.load_model(by_load_model_of_part, part="model")
        by_names = wrap(Module(2))
        load_plain_state(by_names, state_with_names_of_wrapper)
        for model in (by_load, by_step, by_load_model, by_load_model_of_part, by_names):
            assert equal_trees(gathered(plain_state(model)), expected)
        reversed_step = step_in_reverse_order(wrap(Module(2)))
        error = error_of(checkpoints.load, step=reversed_step, partial=True)
        assert "is module.0.weight in the state and last.bias here" in error
