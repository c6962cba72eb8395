"""Wrong arguments, steps and states: each error names what is wrong, and nothing has changed."""

import copy

import pytest
import torch
from support.clocks.holds import CURVE
from support.curves.descriptions import scaled
from support.curves.requirements import A_NUMBER, AN_INTEGER, at_least
from support.runs.scheduler_run import FollowerRun, SchedulerRun
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from support.trees import assert_equal_trees
from support.wrong import raises, wrong
from torch.optim import Adagrad, AdamW
from torch.optim.lr_scheduler import ChainedScheduler, OneCycleLR

from plateau_jax import CurveWarning, DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import follow, lambda_lr

NAN = float("nan")
INF = float("inf")
PATIENT = HoldUntilFlat(3, limit=9)


@pytest.fixture
def optimizer():
    return optimizer_with([0.1, 0.1], AdamW)


# Arguments.

NOT_AN_OPTIMIZER = "must be a torch.optim.Optimizer"
NOT_A_KEY = "must be a key of the parameter groups"


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (TypeError, [NOT_AN_OPTIMIZER], {"optimizer": []}),
        (TypeError, ["curve = ", "PlateauCurve("], {"curve": "curve"}),
        (TypeError, ["curve = ", "PlateauCurve("], {"curve": [CURVE, None]}),
        (ValueError, ["curve has length 3", "parameter groups is 2"], {"curve": [CURVE] * 3}),
        (ValueError, [f"last_epoch = -2 {at_least(-1)}"], {"last_epoch": -2}),
        (
            ValueError,
            ["last_epoch = 7 with DataClock(8)", "DataClock(8, count=n)", "load_state_dict"],
            {"last_epoch": 7, "clock": DataClock(8)},
        ),
        (ValueError, ["must be DataClock(8)"], {"curve": scaled(), "clock": DataClock(16)}),
    ],
)
def test_wrong_argument_of_lambda_lr(optimizer, error, parts, arguments):
    with raises(error, *parts, unchanged=[optimizer]):
        lambda_lr(**{"optimizer": optimizer, "curve": CURVE, **arguments})


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (TypeError, [NOT_AN_OPTIMIZER], {"optimizer": []}),
        (TypeError, ["key = ", NOT_A_KEY], {"key": ("betas", -1)}),
        (TypeError, ["key = ", NOT_A_KEY], {"key": 3}),
        (ValueError, ["param_groups[0] has no decay"], {"key": "decay"}),
        (ValueError, ["param_groups[0] has no betas[2]"], {"key": ("betas", 2)}),
        (ValueError, ["key = 'lr'", "use lambda_lr"], {"key": "lr"}),
        (ValueError, ["key = 'initial_lr'", "use lambda_lr"], {"key": "initial_lr"}),
        (TypeError, [A_NUMBER], {"key": "betas"}),
        (TypeError, ["curve = 'cosine' must be a Curve"], {"curve": "cosine"}),
        (TypeError, ["curve = ", " must be a Curve"], {"curve": torch.ones(2)}),
    ],
)
def test_wrong_argument_of_follow(optimizer, error, parts, arguments):
    with raises(error, *parts, unchanged=[optimizer]):
        follow(**{"optimizer": optimizer, "key": "weight_decay", "curve": CURVE, **arguments})


@pytest.mark.parametrize("kind", [AdamW, Adagrad])
@pytest.mark.parametrize("options", [{}, {"clock": PATIENT}], ids=["updates", "hold rule"])
@wrong(
    ValueError,
    "last_epoch = 6, but param_",
    "lr = 0.01 may be",
    '.param_groups[0]["initial_lr"] = ',
    "load_state_dict(state)",
)
def test_learning_rate_that_may_be_decayed(kind, options):
    optimizer = optimizer_with([0.5, 0.25], kind)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    lambda_lr(optimizer, CURVE, 6, **options)


# Options of the groups.


NOT_NUMBERS = [None, True, torch.tensor(1)]
NOT_POSITIVE_FLOAT32 = [-0.1, INF, 1e-40, 3.5e38, torch.tensor(-0.1)]
every_option = pytest.mark.parametrize(
    "option", ["lr", "initial_lr", "weight_decay", "initial_weight_decay"]
)


def build(option, value):
    optimizer = optimizer_with([0.1, 0.1], AdamW)
    optimizer.param_groups[1][option] = value
    if option.endswith("lr"):
        lambda_lr(optimizer, CURVE)
    else:
        follow(optimizer, "weight_decay", CURVE)


@every_option
@pytest.mark.parametrize("value", NOT_NUMBERS)
@wrong(TypeError, " of param_groups[1] = ")
def test_option_of_a_wrong_type(option, value):
    build(option, value)


@every_option
@pytest.mark.parametrize("value", NOT_POSITIVE_FLOAT32)
@wrong(ValueError, " of param_groups[1] = ")
def test_option_that_is_no_positive_float32(option, value):
    build(option, value)


# Steps and states. A state is saved after five updates, and loaded after six.

CLOCKS = {"scheduler": None, "held": PATIENT, "counted": DataClock(8)}
KINDS = [*CLOCKS, "follower"]


def run_of(kind, curve=CURVE, peaks=(0.25, 0.7), **options):
    if kind == "follower":
        return FollowerRun(curve, peaks)
    return SchedulerRun(curve, peaks, CLOCKS[kind], **options)


class Saved:
    """A run of six updates, and its state after five."""

    def __init__(self, kind, **options):
        self.run = run_of(kind, **options)
        self.run.train(5)
        self.state = copy.deepcopy(self.run.scheduler.state_dict())
        self.run.train(1)

    def rejects(self, state, *parts, match=None):
        """Check that the state is rejected with this message, and that nothing has changed."""
        with raises(ValueError, *parts, match=match, unchanged=[self.run]):
            self.run.scheduler.load_state_dict(state)


@pytest.fixture(params=[True, False], ids=["strict", "not strict"])
def strict(request):
    return request.param


@pytest.fixture(params=KINDS)
def saved(request, strict):
    return Saved(request.param, strict=strict)


@pytest.fixture
def scheduler(strict):
    return Saved("scheduler", strict=strict)


# Wrong steps and peaks.


@pytest.mark.parametrize("epoch", [3.0, True, torch.tensor(3)])
def test_epoch_of_a_wrong_type(scheduler, epoch):
    parts = [f"epoch = {epoch!r} {AN_INTEGER}", "call step()", "takes a loss only with a hold rule"]
    with raises(TypeError, *parts, unchanged=[scheduler.run]):
        scheduler.run.scheduler.step(epoch)


@pytest.mark.parametrize(
    ("peaks", "error", "parts"),
    [
        (-0.1, ValueError, ["peak = "]),
        ("0.1", TypeError, ["peak = '0.1'"]),
        (torch.ones(3), ValueError, ["peak has ", " groups is 2"]),
        ([0.1, -1.0], ValueError, ["peak[1] = -1.0"]),
    ],
)
def test_wrong_peaks(scheduler, peaks, error, parts):
    with raises(error, *parts, unchanged=[scheduler.run]):
        scheduler.run.scheduler.set_peak(peaks)


def test_new_group_with_wrong_lr_changes_nothing():
    run = SchedulerRun(CURVE)
    run.train(1)
    state = run.shown()
    run.add_group(0.1)
    run.optimizer.param_groups[-1]["lr"] = -1.0
    with raises(ValueError, "param_groups[2] = -1.0"):
        run.step_scheduler()
    del run.optimizer.param_groups[-1]
    assert_equal_trees(run.shown(), state)


# States that belong to something else.


def test_state_of_torch_without_a_peak(scheduler):
    one_cycle = OneCycleLR(optimizer_with([0.1, 0.1]), 0.1, 9, cycle_momentum=False)
    instead = ["last_epoch=-1), and then ", "scheduler.set_peak(peak)"]
    scheduler.rejects(one_cycle.state_dict(), "base_lrs are not the peaks", *instead)


def test_state_without_a_counter(scheduler):
    part = "not the state of a scheduler: it has no 'last_epoch'"
    scheduler.rejects({"base_lrs": [0.1]}, part)


def test_state_of_two_schedulers(scheduler):
    optimizer = optimizer_with([0.1, 0.1])
    chain = ChainedScheduler([lambda_lr(optimizer, CURVE), lambda_lr(optimizer, CURVE)])
    part = "has 2 states of the kind 'scheduler': load the one that continues"
    scheduler.rejects(chain.state_dict(), part)


def test_state_in_a_chain_is_compared():
    run = run_of("scheduler", PlateauCurve(40))
    run.train(5)
    state = ChainedScheduler([run.scheduler, follow(run.optimizer, "momentum", CURVE)]).state_dict()
    Saved("scheduler").rejects(state, "differ from")
    again = run_of("scheduler", PlateauCurve(40))
    again.scheduler.load_state_dict(state)
    assert again.scheduler.state_dict() == run.scheduler.state_dict()


# Damaged states. `test_formats.py` tests those of a different version.


@pytest.mark.parametrize(
    ("kind", "entry", "values"),
    [
        ("scheduler", "last_epoch", [2.5, -2]),
        ("scheduler", "offset", [-20, 1.5]),
        ("scheduler", "hold", [[{}]]),
        ("scheduler", "records", [[]]),
        ("scheduler", "peak_was_set", [None]),
        ("scheduler", "in_charge", [1]),
        ("scheduler", "consumed", [77]),
        ("held", "hold", [[], [{}]]),
        ("counted", "consumed", [-1, 2.0, 2**62 + 8]),
        ("counted", "offset", [0]),
        ("follower", "key", ["momentum", ["weight_decay", 0]]),
        ("follower", "groups", [[0], [1, 0]]),
    ],
)
def test_impossible_value_of_an_entry(kind, entry, values):
    saved = Saved(kind)
    assert entry in saved.state
    for value in values:
        saved.rejects(saved.state | {entry: value}, match=f"{entry}|state_dict")


@pytest.mark.parametrize(
    ("entry", "value"),
    [("updates", -1), ("stale", -2), ("filled", -1), ("total", None), ("best", NAN)],
)
def test_impossible_number_in_the_state_of_a_hold_rule(entry, value):
    saved = Saved("held")
    (state,) = saved.state["hold"]
    damaged = saved.state | {"hold": [state | {entry: value}]}
    saved.rejects(damaged, "is not a state of the rule HoldUntilFlat")


UNREADABLE_CURVES = [5, {"kind": "later"}, {"kind": "plateau", "total_steps": 5, "more": 1}]


def with_records(state, **entries):
    """Return a state with these entries in each record."""
    records = [record | entries for record in state["records"]]
    return state | {"records": records}


@pytest.mark.parametrize("curve", UNREADABLE_CURVES, ids=str)
def test_curve_that_cannot_be_read_is_always_an_error(saved, curve):
    """Nothing was compared: neither a follower nor `strict=False` accepts it."""
    saved.rejects(with_records(saved.state, curve=curve), "curve")


@pytest.mark.parametrize("peak", [-0.1, NAN, "x"])
def test_damaged_peak(saved, peak):
    saved.rejects(with_records(saved.state, peak_value=peak), "peak_value")


# States of a different curve, at step 40. The message shows at most two differences.

OLD = PlateauCurve(64, warmup_steps=5)
LONGER = PlateauCurve(96, warmup_steps=5)
SHORT = PlateauCurve(9, plateaus=[(0, 50)])
TO_TRAIN_LONGER = ["step 40: ", " total_steps=64, now 96, ", "pass strict=False ", "lambda_lr if"]


@pytest.mark.parametrize(
    ("saved", "current", "parts"),
    [
        ([OLD], [LONGER], TO_TRAIN_LONGER),
        ([OLD], [SHORT], ["=64, now 9; warmup_steps=5, now 0; …,"]),
        ([OLD, OLD], [OLD, LONGER], ["the values of group 1 differ from step 6 on"]),
    ],
)
def test_state_of_a_different_curve(saved, current, parts):
    peaks = [0.1] * len(saved)
    old = run_of("scheduler", saved, peaks)
    old.train(40)
    state = through_file(old.scheduler.state_dict())
    new = run_of("scheduler", current, peaks)
    with raises(ValueError, *parts, unchanged=[new]):
        new.scheduler.load_state_dict(state)


def test_follower_warns_of_a_different_curve():
    old = run_of("follower", OLD)
    old.train(40)
    new = run_of("follower", LONGER)
    with pytest.warns(CurveWarning, match="differ from step 6 on.* at step 40 of"):
        new.scheduler.load_state_dict(old.scheduler.state_dict())
    assert new.scheduler.curve_step == 40
