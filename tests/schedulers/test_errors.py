"""Wrong arguments, steps and states: each error names what is wrong, and nothing has changed."""

import copy
from functools import partial

import pytest
import torch
from schedulers.builders import CURVE
from support.curves.requirements import at_least
from support.raises import raises
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from support.trees import assert_equal_trees
from torch.optim import AdamW
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from plateau_jax import CurveWarning, DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import follow, lambda_lr

NAN = float("nan")
PATIENT = HoldUntilFlat(3, limit=9)


@pytest.fixture
def optimizer():
    return optimizer_with([0.1, 0.1], AdamW)


# Arguments.

NOT_A_KEY = 'must be a key, or a key and an index: ("betas", 0)'


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (TypeError, ["must be a torch.optim.Optimizer"], {"optimizer": []}),
        (TypeError, ["curve = ", "PlateauCurve("], {"curve": "curve"}),
        (TypeError, ["curve = ", "PlateauCurve("], {"curve": [CURVE, None]}),
        (ValueError, ["curve has length 3", "parameter groups is 2"], {"curve": [CURVE] * 3}),
        (ValueError, [f"last_epoch = -2 {at_least(-1)}"], {"last_epoch": -2}),
        (TypeError, ["strict = 'no' must be a bool"], {"strict": "no"}),
        (
            ValueError,
            ["last_epoch = 7 with DataClock(8)", "DataClock(8, count=n)", "load_state_dict"],
            {"last_epoch": 7, "clock": DataClock(8)},
        ),
    ],
)
def test_wrong_argument_of_lambda_lr(optimizer, error, parts, arguments):
    with raises(error, *parts, unchanged=[optimizer]):
        lambda_lr(**{"optimizer": optimizer, "curve": CURVE, **arguments})


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (TypeError, ["key = ", NOT_A_KEY], {"key": ("betas", -1)}),
        (TypeError, ["key = ", NOT_A_KEY], {"key": 3}),
        (
            ValueError,
            ["param_groups[0] has no decay, nor has any other", "'lr', 'betas', 'eps'"],
            {"key": "decay"},
        ),
        (ValueError, ["param_groups[0] has no betas[2]"], {"key": ("betas", 2)}),
        (
            TypeError,
            ["betas of param_groups[0] = (0.9, 0.999) must be", '("betas", 0) or ("betas", 1)'],
            {"key": "betas"},
        ),
        (ValueError, ["key = 'lr'", "use lambda_lr"], {"key": "lr"}),
        (ValueError, ["key = 'initial_lr'", "use lambda_lr"], {"key": "initial_lr"}),
        (TypeError, ["curve = 'cosine' must be a Curve"], {"curve": "cosine"}),
        (TypeError, ["curve = ", " must be a Curve"], {"curve": torch.ones(2)}),
    ],
)
def test_wrong_argument_of_follow(optimizer, error, parts, arguments):
    with raises(error, *parts, unchanged=[optimizer]):
        follow(**{"optimizer": optimizer, "key": "weight_decay", "curve": CURVE, **arguments})


@raises(
    ValueError,
    "last_epoch = 6, but param_",
    "lr = 0.01 may be",
    '.param_groups[0]["initial_lr"] = ',
    "load_state_dict(state)",
)
def test_learning_rate_that_may_be_decayed():
    optimizer = optimizer_with([0.5, 0.25], AdamW)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    lambda_lr(optimizer, CURVE, 6)


# Options of the groups.


@pytest.mark.parametrize("option", ["lr", "initial_lr"])
@raises(ValueError, "lr of param_groups[1] = -0.1 ")
def test_negative_option(option):
    optimizer = optimizer_with([0.1, 0.1])
    optimizer.param_groups[1][option] = -0.1
    lambda_lr(optimizer, CURVE)


@raises(TypeError, "lr of param_groups[1] = tensor(1) must be a floating-point tensor")
def test_integer_tensor_as_option():
    lambda_lr(optimizer_with([0.1, torch.tensor(1)]), CURVE)


# Steps and states. A state is saved after five updates, and loaded after six.

RUNS = {
    "scheduler": SchedulerRun,
    "held": partial(SchedulerRun, clock=PATIENT),
    "counted": partial(SchedulerRun, clock=DataClock(8)),
    "follower": FollowerRun,
}


class Saved:
    """A run of six updates, and its state after five."""

    def __init__(self, name):
        self.run = RUNS[name](CURVE)
        self.run.train(5)
        self.state = copy.deepcopy(self.run.scheduler.state_dict())
        self.run.train(1)

    def rejects(self, state, *parts):
        """Check that the state is rejected with this message, and that nothing has changed."""
        with raises(ValueError, *parts, unchanged=[self.run]):
            self.run.scheduler.load_state_dict(state)


@pytest.fixture
def scheduler():
    return Saved("scheduler")


# Wrong steps and peaks.


@pytest.mark.parametrize("epoch", [3.0, True, torch.tensor(3)])
def test_epoch_of_a_wrong_type(scheduler, epoch):
    parts = [f"step({epoch!r}): call step()", "clock=rule), step(metric=loss)", "is an integer"]
    with raises(TypeError, *parts, unchanged=[scheduler.run]):
        scheduler.run.scheduler.step(epoch)


@pytest.mark.parametrize(
    ("peaks", "part"),
    [
        (torch.ones(3), "peak has length 3; the number of parameter groups is 2"),
        ([0.1, -1.0], "peak[1] = -1.0"),
    ],
)
def test_wrong_peaks(scheduler, peaks, part):
    with raises(ValueError, part, unchanged=[scheduler.run]):
        scheduler.run.scheduler.set_peak(peaks)


def test_new_group_with_wrong_lr_changes_nothing():
    run = SchedulerRun(CURVE)
    run.train(1)
    state = run.state_dict()
    run.add_group(0.1)
    run.optimizer.param_groups[-1]["lr"] = -1.0
    with raises(ValueError, "param_groups[2] = -1.0"):
        run.step_scheduler()
    del run.optimizer.param_groups[-1]
    assert_equal_trees(run.state_dict(), state)


# States that belong to something else.


def test_state_of_torch_without_a_peak(scheduler):
    one_cycle = OneCycleLR(optimizer_with([0.1, 0.1]), 0.1, 9, cycle_momentum=False)
    reduce_on_plateau = ReduceLROnPlateau(optimizer_with([0.1, 0.1]))
    reduce_on_plateau.step(1.0)
    optimizer = optimizer_with([0.1, 0.1])
    first = OneCycleLR(optimizer, 0.1, 9, cycle_momentum=False)
    sequence = SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, 9)], [3])
    for without_a_peak in (one_cycle, reduce_on_plateau, sequence):
        instead = ["last_epoch=n - 1), ", "number of updates so far", "scheduler.set_peak(peak)"]
        scheduler.rejects(without_a_peak.state_dict(), "has no peaks", *instead)


@pytest.mark.parametrize("name", ["scheduler", "follower"])
def test_whole_checkpoint(name):
    saved = Saved(name)
    checkpoint = {"optimizer": {}, "schedule": saved.state}
    saved.rejects(checkpoint, "a whole checkpoint: ", "state_dict['schedule']")


def test_state_of_something_else(scheduler):
    for state in ({"base_lrs": [0.1]}, {"_schedulers": []}):
        scheduler.rejects(state, "not the state of a scheduler: it has no 'last_epoch'")
    of_torch = ChainedScheduler([LambdaLR(optimizer_with([0.1]), float)]).state_dict()
    scheduler.rejects({"epoch": 3, "lr_scheduler": of_torch}, "state_dict['lr_scheduler']")
    optimizer = optimizer_with([0.1, 0.1])
    chain = ChainedScheduler([lambda_lr(optimizer, CURVE), lambda_lr(optimizer, CURVE)])
    part = "has 2 states of the kind 'scheduler': load the one that continues"
    scheduler.rejects(chain.state_dict(), part)


def test_text_in_place_of_strict(optimizer):
    scheduler = lambda_lr(optimizer, CURVE)
    with raises(TypeError, "strict = 'no' must be a bool", unchanged=[scheduler]):
        scheduler.load_state_dict(scheduler.state_dict(), strict="no")


def test_state_in_a_chain_is_compared():
    run = SchedulerRun(PlateauCurve(40))
    run.train(5)
    run.optimizer.param_groups[0]["momentum"] = 0.9
    state = ChainedScheduler([run.scheduler, follow(run.optimizer, "momentum", CURVE)]).state_dict()
    Saved("scheduler").rejects(state, "differ from")
    again = SchedulerRun(PlateauCurve(40))
    again.scheduler.load_state_dict(state)
    assert again.scheduler.state_dict() == run.scheduler.state_dict()


# Damaged states. `test_formats.py` tests those of a different version.


@pytest.mark.parametrize(
    ("name", "entry", "value"),
    [
        ("scheduler", "last_epoch", -2),
        ("scheduler", "offset", -20),
        ("scheduler", "consumed", 77),
        ("scheduler", "base_lrs", [0.5, -1.0]),
        ("scheduler", "base_lrs", [0.5]),
        ("held", "hold", []),
        ("counted", "consumed", -1),
        ("follower", "key", "momentum"),
        ("follower", "groups", [0]),
    ],
)
def test_impossible_value_of_an_entry(name, entry, value):
    saved = Saved(name)
    assert entry in saved.state
    saved.rejects(saved.state | {entry: value}, entry)


@pytest.mark.parametrize(
    ("entry", "value"), [("stale", -2), ("stale", 1.5), ("total", None), ("best", NAN)]
)
def test_impossible_number_in_the_state_of_a_hold_rule(entry, value):
    saved = Saved("held")
    (state,) = saved.state["hold"]
    damaged = saved.state | {"hold": [state | {entry: value}]}
    saved.rejects(damaged, f"hold.{entry} = {value} must ")


# States of a different curve, at step 40. The message shows at most two differences.

OLD = PlateauCurve(64, warmup_steps=5)
LONGER = PlateauCurve(96, warmup_steps=5)
SHORT = PlateauCurve(9, plateaus=[(0, 50)])
TO_TRAIN_LONGER = ["step 40: ", " total_steps=64, now 96, ", "pass strict=False ", "lambda_lr if"]


@pytest.mark.parametrize(
    ("current", "parts"),
    [(LONGER, TO_TRAIN_LONGER), (SHORT, ["=64, now 9; warmup_steps=5, now 0; …,"])],
)
def test_state_of_a_different_curve(current, parts):
    old = SchedulerRun(OLD)
    old.train(40)
    state = through_file(old.scheduler.state_dict())
    new = SchedulerRun(current)
    with raises(ValueError, *parts, unchanged=[new]):
        new.scheduler.load_state_dict(state)


def test_follower_warns_of_a_different_curve():
    old = FollowerRun(OLD)
    old.train(40)
    new = FollowerRun(LONGER)
    with pytest.warns(CurveWarning, match="differ from step 6 on.* at step 40 of"):
        new.scheduler.load_state_dict(old.scheduler.state_dict())
    assert new.scheduler.curve_step == 40


def test_long_key_is_shortened():
    with pytest.raises(ValueError, match="has no xxx") as caught:
        follow(optimizer_with([0.5]), "x" * 100_000, CURVE)
    assert len(str(caught.value)) < 500
