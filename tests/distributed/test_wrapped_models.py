"""Models under torch's wrappers in a group of one rank; their updates are those of any group."""

import copy
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from support.distributed.models import wrapped
from support.raises import raises
from support.training.models import Net, batches
from support.training.optimizers import OPTIMIZERS
from support.training.reads import Reads
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from plateau_jax import CurveWarning
from torch_bridge import distribute

pytestmark = pytest.mark.usefixtures("one_rank")

(BATCH,) = batches(1)


by_ddp_or_fsdp = pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])


# Models that a step rejects.


def check_rejected(model, part):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with raises(ValueError, part, unchanged=[optimizer]):
        make_step(model=model, optimizer=optimizer)


def test_part_in_ddp_is_rejected():
    model = nn.Sequential(DistributedDataParallel(Net()))
    check_rejected(model, "DistributedDataParallel")


def test_sharded_part_is_rejected():
    model = nn.Sequential(fully_shard(Net()))
    check_rejected(model, "FSDPModule")


def test_parameters_that_fsdp_ignores_are_rejected():
    model = Net()
    ignored = set(model.first.parameters())
    fully_shard(model, ignored_params=ignored)
    check_rejected(model, "sharded in part")


def test_parameter_that_ddp_ignores_is_rejected():
    model = Net()
    ignored = ["first.weight"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    check_rejected(DistributedDataParallel(model), "does not average")


def test_parameter_that_is_a_dtensor_is_rejected():
    model = Net()
    mesh = init_device_mesh("cpu", (1,))
    weight = distribute_tensor(model.first.weight.detach(), mesh, [Replicate()])
    model.first.weight = nn.Parameter(weight)
    check_rejected(model, "DTensors")


def test_model_over_two_meshes_is_rejected():
    model = Net()
    mesh = init_device_mesh("cpu", (1,))
    different_mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copy", "shard"))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=different_mesh)
    check_rejected(model, "several meshes")


@by_ddp_or_fsdp
def test_cuda_graph_rejects_wrapped_model(wrap):
    model = wrap(Net())
    with raises(ValueError, "cuda_graph=True ", " not wrapped"):
        make_step(model=model, cuda_graph=True)


# Updates.


@by_ddp_or_fsdp
def test_update_of_wrapped_model_reads_nothing(wrap):
    model = wrap(Net())
    step = make_step(model=model, max_norm=0.1)
    step(BATCH)
    with Reads() as reads:
        step(BATCH, BATCH)
    # FSDP2 frees memory, and allocates it again, through storages.
    assert set(reads.names) <= {"untyped_storage"}


def test_update_averages_whatever_divisor_the_model_had():
    model = fully_shard(Net())
    model.set_gradient_divide_factor(2.0)
    norms = [make_step(model=item)(BATCH).grad_norm for item in (model, fully_shard(Net()))]
    assert norms[0] == norms[1]


def sum_and_size(model, batch):
    if not len(batch):
        return torch.zeros(()), 0
    return model(batch).square().sum(), len(batch)


def test_last_micro_batch_may_be_empty_on_one_rank():
    inputs, _ = BATCH
    step = make_step(model=fully_shard(Net()), loss_fn=sum_and_size)
    plain_step = make_step(model=Net(), loss_fn=sum_and_size)
    for micro_batches in ([inputs, inputs[:0]], [inputs]):
        result = step(*micro_batches)
        assert result.grad_norm == plain_step(*micro_batches).grad_norm


NOT_ON_SHARDS = {"sgd", "momentum", "nesterov", "adagrad", "adafactor", "rprop", "muon"}
"""Torch cannot run these, or not all versions of it can."""


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - NOT_ON_SHARDS))
def test_optimizer_runs_on_sharded_parameters(name):
    model = fully_shard(Net())
    step = make_step(name, model)
    for _ in range(3):
        step(BATCH)


# Errors in mid-update.


def interrupt(*_):
    raise KeyboardInterrupt


def interrupt_backward(_, __, output):
    output.register_hook(interrupt)


def in_forward(step, model):
    return model.first.register_forward_hook(interrupt)


def in_backward(step, model):
    return model.first.register_forward_hook(interrupt_backward)


def in_optimizer(step, model):
    return step.optimizer.register_step_pre_hook(interrupt)


@pytest.mark.parametrize("hook", [in_forward, in_backward, in_optimizer])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_step_rejects_calls_after_an_error(wrapper, hook):
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


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_step_loads_after_an_interrupted_load(wrapper):
    step = make_step(model=wrapped(wrapper, Net()))
    state = step.state_dict()
    handle = step.optimizer.register_load_state_dict_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        step.load_state_dict(state)
    handle.remove()
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        step(BATCH)
    step.load_state_dict(state)
    step(BATCH)


# Gradients that DDP does not average.


class Skipping(nn.Module):
    """Leaves out its last layer in micro-batches that say so."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3)

    def forward(self, inputs, uses_all):
        hidden = torch.tanh(self.first(inputs))
        if uses_all:
            return self.last(hidden)
        return hidden


USES_ALL = torch.ones(4, 3), True
USES_FIRST = torch.ones(4, 3), False


def loss_of(model, batch):
    return model(*batch).square().mean()


def loss_of_module(model, batch):
    return loss_of(model.module, batch)


def loss_without_gradients(model, batch):
    with torch.no_grad():
        model(*batch)
    return loss_of_module(model, batch)


def right_loss(model, batch):
    loss = loss_of(model, batch)
    with torch.no_grad():
        model(*batch)  # an additional pass without gradients is allowed
    return loss


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrong_loss", [loss_of_module, loss_without_gradients])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_update_that_bypasses_ddp_is_rejected(wrong_loss, is_compiled):
    current_loss = right_loss

    def loss_fn(model, batch):
        return current_loss(model, batch)

    used_loss_fn = loss_fn
    if is_compiled:
        used_loss_fn = torch.compile(loss_fn, backend="eager")
    plain = Skipping()
    model = DistributedDataParallel(plain)
    step = make_step(model=model, loss_fn=used_loss_fn)
    step(USES_ALL)
    before = copy.deepcopy(plain.state_dict())
    current_loss = wrong_loss
    with pytest.raises(RuntimeError, match=r"loss_fn must call its argument, model\(inputs\)"):
        step(USES_ALL, USES_ALL)
    assert_equal_trees(plain.state_dict(), before)


def test_ddp_may_be_told_that_layers_have_no_gradients():
    model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
    step = make_step(model=model, loss_fn=loss_of)
    step(USES_ALL, USES_FIRST)
    step(USES_ALL, USES_FIRST)


def check_not_averaged(step, plain, *micro_batches):
    before = copy.deepcopy(plain.state_dict())
    message = r"not averaged the gradients\. .*find_unused_parameters=True"
    with pytest.raises(RuntimeError, match=message):
        step(*micro_batches)
    assert_equal_trees(plain.state_dict(), before)


def test_layer_that_is_left_out_is_rejected():
    plain = Skipping()
    model = DistributedDataParallel(plain)
    step = make_step(model=model, loss_fn=loss_of)
    check_not_averaged(step, plain, USES_ALL, USES_FIRST)


@pytest.mark.parametrize("updates", [0, 1])
def test_layer_that_is_frozen_after_wrapping_is_rejected(updates):
    plain = Skipping()
    model = DistributedDataParallel(plain)
    step = make_step(model=model, loss_fn=loss_of)
    for _ in range(updates):
        step(USES_ALL, USES_ALL)
    plain.last.requires_grad_(False)
    check_not_averaged(step, plain, USES_ALL, USES_ALL)


def test_layer_that_was_frozen_when_wrapped_is_rejected():
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


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_layer_that_is_replaced_after_wrapping_is_rejected(options):
    """As many parameters are trained as DDP averages, but some of them are different ones."""
    plain = Net()
    model = DistributedDataParallel(plain, **options)
    plain.last = copy.deepcopy(plain.last)
    check_rejected(model, "does not average the gradients of some of the optimizer's")


def test_step_under_no_sync_is_rejected():
    model = DistributedDataParallel(Net())
    step = make_step(model=model)
    with model.no_sync(), pytest.raises(RuntimeError, match=r"not under .* no_sync\(\)"):
        step(BATCH)


# A model that is not wrapped, on several ranks.


def warnings_of_two_ranks(model):
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
        assert "Pass what distribute(model) returns to the step" in str(warning.message)
        assert "one model per rank, write distribute(model, None)" in str(warning.message)
    return caught


def test_unwrapped_model_warns():
    model = nn.Sequential(Net())
    make_step(model=model)  # not on one rank
    assert len(warnings_of_two_ranks(model)) == 2


def test_unwrapped_model_warns_unless_intended():
    model = nn.Sequential(Net())
    assert distribute(model, None, device="cpu") is model
    assert warnings_of_two_ranks(model) == []
