"""Models under torch's wrappers in a group of one rank, whose updates take the path of any other group."""

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import whole
from support.distributed.distributed_updates import Block, Case, Mixer, Stack, gradients_of, train, wrapped
from support.distributed.processes import error_of
from support.training.models import Net, batches, seeded
from support.training.optimizers import OPTIMIZERS
from support.training.reads import Reads
from support.training.steps import equal_trees, make_step
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


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded(model: nn.Module, **options: Any) -> Any:
    return fully_shard(model, **options)


@pytest.mark.slow
def test_wrapping_changes_no_bits() -> None:
    for wrapper, loss, precision, synchronize in product(
        ("ddp", "fsdp"), ("mean", "pair", "device pair"), ("fp32", "bf16", "fp16"), ("update", "micro")
    ):
        case = Case(
            *(wrapper, "adamw", loss, 3, 0.1, precision, synchronize),
            corrupted=((2, 0, float("nan")),),
            updates=4,
            processes=1,
        )
        actual, plain = train(case), train(case._replace(wrapper="plain"))
        assert repr(actual[:-1]) == repr(plain[:-1]), case
        assert all(map(np.array_equal, actual.weights, plain.weights)), case


def ignored_by_ddp(model: Any) -> nn.Module:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["first.weight"])
    return DistributedDataParallel(model)


def distributed_tensor(model: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    model.first.weight = nn.Parameter(distribute_tensor(model.first.weight.detach(), mesh, [Replicate()]))
    return model


def two_meshes(model: Any) -> nn.Module:
    sharded(model.first, mesh=init_device_mesh("cpu", (1,)))
    return sharded(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("copy", "shard")))


def divided_in_part(model: Any) -> nn.Module:
    sharded(model.first).set_gradient_divide_factor(1.0)
    return sharded(model)


def divided(model: Any) -> nn.Module:
    sharded(model).set_gradient_divide_factor(2.0)
    return model


# Models that a step rejects, and what is said.
MODELS: dict[str, tuple[Callable[[Any], nn.Module], str]] = {
    "a part in DDP": (lambda model: nn.Sequential(DistributedDataParallel(model)), "DistributedDataParallel"),
    "DDP in DDP": (
        lambda model: DistributedDataParallel(nn.Sequential(DistributedDataParallel(model))),
        "DistributedDataParallel",
    ),
    "a sharded part": (lambda model: nn.Sequential(sharded(model)), "FSDPModule"),
    "a part left out": (
        lambda model: sharded(model, ignored_params=set(model.first.parameters())),
        "sharded in part",
    ),
    "a part that DDP ignores": (ignored_by_ddp, "does not average"),
    "a DTensor": (distributed_tensor, "DTensors"),
    "two meshes": (two_meshes, "several meshes"),
    "a divisor": (divided, "averages over the 1 ranks"),
    "a divisor of a part": (divided_in_part, "averages over the 1 ranks"),
}


@pytest.mark.parametrize("name", MODELS)
def test_unsupported_wrapping_is_rejected(name: str) -> None:
    wrap, message = MODELS[name]
    model = wrap(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        make_step(model=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_cuda_graph_rejects_wrapped_model(wrap: Any) -> None:
    message = r"^cuda_graph=True needs a model that is not wrapped for several ranks$"
    with pytest.raises(ValueError, match=message):
        make_step(model=wrap(Net()), cuda_graph=True)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_wrong_count_changes_nothing(wrap: Any) -> None:
    """It is rejected before the update begins, so the step stays usable."""
    step = make_step(model=wrap(Net()), clock=DataClock(2))
    with pytest.raises(ValueError, match="count = -1"):
        step(BATCH, count=-1)
    assert step(BATCH, count=3).counters.tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize("wrap", [DistributedDataParallel, sharded])
def test_update_of_wrapped_model_reads_nothing(wrap: Any) -> None:
    step = make_step(model=wrap(Net()), max_norm=0.1)
    step(BATCH)
    with Reads() as reads:
        step(BATCH, BATCH)
    # FSDP2 frees memory, and allocates it again, through storages.
    assert set(reads.names) <= {"untyped_storage"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_runs_on_sharded_parameters(name: str) -> None:
    """Or the step says that torch can't run it."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)) if name == "muon" else Net()
    if name in {"sgd", "momentum", "dampened", "nesterov", "adagrad", "adafactor", "rprop", "muon"}:
        with pytest.raises(ValueError, match="torch cannot run"):
            make_step(name, sharded(model))
        return
    step = make_step(name, sharded(model))
    for _ in range(3):
        step(BATCH)


def fail(*_: Any) -> Any:
    raise KeyboardInterrupt


def fail_backward(_: Any, __: Any, output: Tensor) -> None:
    output.register_hook(fail)


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_step_rejects_calls_after_an_error(wrapper: str, place: str) -> None:
    """Wherever the error came: other ranks may wait in a collective, and torch's wrappers are in mid-pass."""
    model = Net()
    step = make_step(model=wrapped(wrapper, model))
    step(BATCH)
    state = step.state_dict()
    if place == "optimizer":
        hook = step.optimizer.register_step_pre_hook(fail)
    else:
        hook = model.first.register_forward_hook(fail if place == "forward" else fail_backward)
    with pytest.raises(KeyboardInterrupt):
        step(BATCH)
    hook.remove()
    for call in (partial(step, BATCH), step.state_dict, partial(step.load_state_dict, state)):
        with pytest.raises(RuntimeError, match="restart the program from its last checkpoint"):
            call()


class Skipping(nn.Module):
    """Leaves out its last layer in micro-batches that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor, uses_all: bool) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(hidden) if uses_all else hidden


ALL, FIRST = (torch.ones(4, 3), True), (torch.ones(4, 3), False)


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
@pytest.mark.parametrize("wrong", [loss_of_module, loss_without_gradients])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_update_that_bypasses_ddp_is_rejected(wrong: Any, is_compiled: bool) -> None:
    plain, is_right = Skipping(), True

    def loss_fn(model: Any, batch: Any) -> Tensor:
        return right_loss(model, batch) if is_right else wrong(model, batch)

    used: Any = torch.compile(loss_fn, backend="eager") if is_compiled else loss_fn
    step = make_step(model=DistributedDataParallel(plain), loss_fn=used)
    step(ALL)
    before, is_right = copy.deepcopy(plain.state_dict()), False
    with pytest.raises(RuntimeError, match=r"loss_fn did not call it .* model\(inputs\)"):
        step(ALL, ALL)
    assert equal_trees(plain.state_dict(), before)


def test_layer_without_gradient_is_rejected() -> None:
    """Unless DDP was told that layers may have none."""
    step = make_step(model=DistributedDataParallel(Skipping(), find_unused_parameters=True), loss_fn=loss_of)
    for _ in range(2):
        step(ALL, FIRST)
    for is_frozen, updates in ((False, 0), (True, 0), (True, 1)):
        plain = Skipping()
        step = make_step(model=DistributedDataParallel(plain), loss_fn=loss_of)
        for _ in range(updates):
            step(ALL, ALL)
        plain.last.requires_grad_(not is_frozen)
        before = copy.deepcopy(plain.state_dict())
        with pytest.raises(RuntimeError, match=r"not averaged the gradients: .*find_unused_parameters=True"):
            step(ALL, ALL if is_frozen else FIRST)
        assert equal_trees(plain.state_dict(), before)


def test_layer_that_ddp_left_out_is_rejected() -> None:
    frozen = Net()
    frozen.last.requires_grad_(False)
    model = DistributedDataParallel(frozen)
    step = make_step(model=model)
    frozen.last.requires_grad_(True)
    for call in (lambda: step(BATCH), lambda: make_step(model=model)):
        with pytest.raises(ValueError, match="does not average the gradients of some of the optimizer's"):
            call()


def test_step_under_no_sync_is_rejected() -> None:
    model = DistributedDataParallel(Net())
    step = make_step(model=model)
    with model.no_sync(), pytest.raises(RuntimeError, match=r"called under no_sync\(\)"):
        step(BATCH)


@pytest.mark.parametrize("marked", ["nothing", "a part", "the whole"])
def test_unwrapped_model_warns_unless_intended(marked: str) -> None:
    model = nn.Sequential(Net())
    make_step(model=model)  # not on one rank
    if marked == "the whole":
        assert distribute(model, None, device="cpu") is model
    if marked == "a part":
        distribute(model[0], None, device="cpu")
    with (
        warnings.catch_warnings(record=True) as caught,
        patch.object(distributed, "get_world_size", lambda: 2),
    ):
        warnings.simplefilter("always")
        make_step(model=model)
        make_step(model=model[0])
    assert len(caught) == {"nothing": 2, "a part": 1, "the whole": 0}[marked]
    for warning in caught:
        assert warning.category is CurveWarning
        assert Path(warning.filename).name == "steps.py"
        assert "distribute(model, None)" in str(warning.message)


def sharded_by(*kinds: type[nn.Module], **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        for kind in kinds:
            for module in model.modules():
                if isinstance(module, kind):
                    sharded(module, **options)
        return sharded(model, **options)

    return wrap


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp unused": lambda model: DistributedDataParallel(model, find_unused_parameters=True),
    "fsdp": sharded_by(),
    "fsdp blocks": sharded_by(Block),
    "fsdp within blocks": sharded_by(Mixer, Block),
    "fsdp within blocks alone": sharded_by(Mixer),
    "fsdp kept": sharded_by(Block, reshard_after_forward=False),
}


@pytest.mark.parametrize("blocks", [Block, (Block, Mixer)])
@pytest.mark.parametrize("name", WRAPPERS)
def test_checkpointed_model_has_same_bits(name: str, blocks: Any) -> None:
    """Whether it is checkpointed before or after wrapping."""
    build, wrap = Stack, WRAPPERS[name]
    if "within" in name and TorchVersion(torch.__version__) < "2.11":
        # The second pass of a block that is used again would find the modules inside it resharded.
        build = partial(Stack, order=(0, 1))
    expected = gradients_of(wrap(build()))
    before = wrap(checkpoint_activations(build(), blocks))
    after = checkpoint_activations(wrap(build()), blocks)
    for model in (before, after):
        assert equal_trees(gradients_of(model), expected)


class Module(nn.Module):
    """A model with a part named like a wrapper's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            self.module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.module(inputs))


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_part(model: Any) -> nn.Module:
    model.module[0] = compiled(model.module[0])
    return model


def checkpointed(model: Any) -> nn.Module:
    """Wrap a layer as torch does, which adds a part to its parameters' names."""
    model.module[0] = cast("Any", checkpoint_wrapper).checkpoint_wrapper(model.module[0])
    return model


NESTED: list[Callable[[nn.Module], nn.Module]] = [
    nn.Module.train,  # returns the plain model
    compiled,
    compiled_in_part,
    DataParallel,
    lambda model: compiled(DataParallel(model)),
    lambda model: DataParallel(compiled(model)),
    DistributedDataParallel,
    lambda model: DistributedDataParallel(compiled(model)),
    lambda model: compiled(DistributedDataParallel(model)),
    sharded,
    lambda model: compiled(sharded(model)),
    lambda model: DistributedDataParallel(checkpointed(model)),
    lambda model: sharded(checkpointed(model)),
]


def step_over(model: nn.Module, order: int = 1) -> TrainStep:
    return make_step(model=model, optimizer=torch.optim.AdamW([*model.parameters()][::order], lr=0.1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("wrap_saved", NESTED)
def test_state_loads_under_every_wrapper(tmp_path: Path, wrap_saved: Any) -> None:
    """Under any wrapper a step and a model are saved alone; they load under any other."""
    saved, again, checkpoints = wrap_saved(Module(1)), wrap_saved(Module(2)), Checkpoints(tmp_path)
    step = step_over(saved)
    step(BATCH)
    checkpoints.save(1, step=step, model=saved, wait=True)
    plain: Any = plain_state(saved)
    assert plain._metadata["module.1"] == {"version": 2}  # of the batch normalization
    expected, state = whole(plain), step.state_dict()
    assert plain.keys() == state["model"].keys() == Module(1).state_dict().keys()
    # A state may have the wrapper's names, as `model.state_dict()` has them.
    named = whole(saved.state_dict())
    step_over(again).load_state_dict({**state, "model": named})
    assert equal_trees(whole(plain_state(again)), expected)
    for wrap in NESTED:
        models = [wrap(Module(2)) for _ in range(5)]
        checkpoints.load(model=models[0])
        checkpoints.load(step=step_over(models[1]))
        checkpoints.load_model(models[2])
        checkpoints.load_model(models[3], part="model")
        load_plain_state(models[4], named)
        for model in models:
            assert equal_trees(whole(plain_state(model)), expected)
        error = error_of(checkpoints.load, step=step_over(wrap(Module(2)), order=-1))
        assert "is module.0.weight in the state and last.bias here" in error
