"""Groups that programs change in mid-run; the memory of groups and schedulers; tensors in them."""

import copy
import gc
import weakref

import pytest
import torch
from schedulers.builders import CURVE
from support.schedulers.runs import (
    advance,
    learning_rate,
    learning_rates,
    lrs_of,
    new_parameter,
    optimizer_with,
)
from torch.nn import Parameter
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR, SequentialLR, StepLR

from plateau_jax import CurveWarning, PlateauCurve
from plateau_jax.runs.schedules import Schedules
from torch_bridge import follow, lambda_lr


@pytest.fixture
def optimizer():
    return AdamW([new_parameter()], lr=0.5, weight_decay=0.5)


# In mid-run.


def test_scheduler_that_is_not_stepped_writes_nothing(optimizer):
    """The groups of the next stage belong to torch's scheduler, although ours is still alive."""
    earlier = lambda_lr(optimizer, CURVE)
    advance(optimizer, earlier, 5)
    optimizer.step()
    constant = StepLR(optimizer, 100)  # it changes no learning rate yet
    optimizer.add_param_group({"params": [new_parameter()], "lr": 0.25})
    optimizer.step()
    assert optimizer.param_groups[-1]["lr"] == 0.25
    constant.step()
    optimizer.add_param_group({"params": [new_parameter()], "lr": 0.125})
    optimizer.step()
    assert optimizer.param_groups[-1]["lr"] == 0.125


def test_update_without_learning_rates_meets_no_group(optimizer):
    """Torch's `get_optimizer_state_dict` makes such an update, to create the state."""
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": [new_parameter()], "lr": 0.0})
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.25
    advance(optimizer, scheduler, 3)
    assert lrs_of(optimizer) == learning_rates([0.25], CURVE, 3)


def test_loaded_state_of_fewer_groups_gives_every_group_its_peak():
    """A later scheduler reads the peak of a group whose `initial_lr` the program has deleted."""
    saved = lambda_lr(optimizer_with([0.125]), CURVE).state_dict()
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 30)
    del optimizer.param_groups[1]["initial_lr"]
    with pytest.warns(CurveWarning, match="different peak"):
        scheduler.load_state_dict(saved)
    assert lambda_lr(optimizer, CURVE).base_lrs == [0.125, 0.25]


def test_resume_leaves_the_base_of_another_scheduler():
    runs = []
    for is_resumed in (False, True):
        optimizer, sequence = before_one_cycle()
        advance(optimizer, sequence, 5)
        if is_resumed:
            states = copy.deepcopy([optimizer.state_dict(), sequence.state_dict()])
            optimizer, sequence = before_one_cycle()
            optimizer.load_state_dict(states[0])
            sequence.load_state_dict(states[1])
        advance(optimizer, sequence, 10)
        runs.append(lrs_of(optimizer))
    assert runs[0] == runs[1]


def before_one_cycle():
    optimizer = optimizer_with([0.5])
    schedulers = [lambda_lr(optimizer, CURVE), OneCycleLR(optimizer, max_lr=0.25, total_steps=50)]
    return optimizer, SequentialLR(optimizer, schedulers, [8])


def test_loaded_groups_with_one_tensor_get_their_own():
    tensor = torch.tensor(0.5)
    state = copy.deepcopy(optimizer_with([tensor, tensor]).state_dict())
    optimizer = optimizer_with([torch.tensor(0.5), torch.tensor(0.5)])
    falling = PlateauCurve(100, decay_shape="linear")
    scheduler = lambda_lr(optimizer, [CURVE, falling], advise=False)
    optimizer.load_state_dict(state)
    advance(optimizer, scheduler, 20)
    expected = [learning_rate(0.5, curve, 20) for curve in (CURVE, falling)]
    assert lrs_of(optimizer) == expected


# Memory.


@pytest.mark.slow
@pytest.mark.usefixtures("short_windows")
def test_removed_groups_are_freed():
    """An adapter for each task, or a helper for each update."""
    optimizer = SGD([new_parameter()], lr=0.5, weight_decay=0.5)
    scheduler = lambda_lr(optimizer, PlateauCurve(20_000))
    follower = follow(optimizer, "weight_decay", CURVE)
    helpers = []
    for _ in range(3000):
        helper = new_parameter()
        helpers.append(weakref.ref(helper))
        optimizer.add_param_group({"params": [helper], "lr": 0.25})
        optimizer.step()
        optimizer.param_groups.pop()
        del helper
        scheduler.step()
        follower.step()
    gc.collect()
    assert not any(helper() is not None for helper in helpers)


def test_collected_schedulers_are_not_kept():
    """One that was stepped lives no longer than the user's reference; another one replaces it."""
    gc.collect()
    gc.freeze()  # the collections below then search only the objects of this test
    optimizer = optimizer_with([0.1])

    def collect_garbage(*_):
        gc.collect()

    optimizer.register_step_post_hook(collect_garbage)  # while the hooks are iterated over
    for _ in range(3):
        scheduler = lambda_lr(optimizer, CURVE)
        reference = weakref.ref(scheduler)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        scheduler.cycle = scheduler
        advance(optimizer, scheduler, 21)
        del scheduler
        optimizer.step()
        assert reference() is None


def test_values_ahead_stay_few():
    """As many steps as at first, or a distant step alone."""
    values = Schedules([PlateauCurve(10**9)], [0.1])
    assert values.values_at(0)
    steps_ahead = len(values.rows)
    for step in range(20_000):
        assert values.values_at(step)
        assert len(values.rows) == steps_ahead
    assert values.values_at(10**5)
    assert len(values.rows) == 1


# Options that are tensors.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key", ["lr", "weight_decay"])
def test_groups_do_not_share_the_default_tensor(key, dtype):
    """Torch gives the same tensor to all groups without an explicit value."""
    options = {key: torch.tensor(0.5, dtype=dtype)}
    optimizer = AdamW([{"params": [new_parameter()]}, {"params": [new_parameter()]}], **options)
    curves = [CURVE, PlateauCurve(200, decay_shape="linear")]
    if key == "lr":
        part = lambda_lr(optimizer, curves)
    else:
        part = follow(optimizer, key, curves)
    advance(optimizer, part, 3)
    values = [float(group[key]) for group in optimizer.param_groups]
    assert values == [learning_rate(0.5, curve, 3) for curve in curves]
    assert float(optimizer.defaults[key]) == 0.5, "a new group begins with it"


@pytest.mark.gpu("torch")
def test_lr_on_the_device_stays_there():
    parameter = Parameter(torch.ones(2, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = AdamW([parameter], lr=torch.tensor(0.7, device="cuda"), capturable=True)
    scheduler = lambda_lr(optimizer, CURVE)
    tensor = optimizer.param_groups[0]["lr"]
    assert tensor.is_cuda
    for step in range(30):
        assert optimizer.param_groups[0]["lr"] is tensor
        assert tensor.item() == learning_rate(0.7, CURVE, step)
        advance(optimizer, scheduler)
