"""Wrong arguments, steps and states: each error names what is wrong, and nothing has changed."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import CURVE
from support.curves.descriptions import CURVES_IN_UNITS_OF_8
from support.damage import damaged
from support.examples import examples
from support.runs.torch_run import FollowerRun, SchedulerRun
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from support.trees import equal_trees
from support.wrong import wrong
from torch.optim import Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from plateau_jax import CurveWarning, DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve
from plateau_jax.clocks.known_rules import RULES
from torch_bridge import count_updates, follow, lambda_lr

NAN = float("nan")
INF = float("inf")
PATIENT = HoldUntilFlat(3, limit=9)
NAMES_OF_RULES = [f"a {rule.__name__}, " for rule in RULES.values()]


@pytest.fixture
def optimizer() -> Optimizer:
    return optimizer_with([0.1, 0.1], AdamW)


# Arguments of lambda_lr.


@pytest.mark.parametrize("value", [None, torch.nn.Linear(1, 1), []])
@wrong(TypeError, "must be a torch")
def test_optimizer_of_a_scheduler(value: Any) -> None:
    lambda_lr(value, CURVE)


@pytest.mark.parametrize("value", [None, "curve", 5, [CURVE, None], iter([CURVE])])
@wrong(TypeError, "curve = ", "PlateauCurve(")
def test_curve_of_a_wrong_type(optimizer: Any, value: Any) -> None:
    lambda_lr(optimizer, value)


@pytest.mark.parametrize("count", [0, 1, 3])
@wrong(ValueError, "curve has {count}", "parameter groups is 2")
def test_number_of_curves(optimizer: Any, count: int) -> None:
    lambda_lr(optimizer, [CURVE] * count)


@pytest.mark.parametrize("value", [1.0, True, None, "3"])
@wrong(TypeError, "last_epoch = {value}", "integer")
def test_last_epoch_of_a_wrong_type(optimizer: Any, value: Any) -> None:
    lambda_lr(optimizer, CURVE, value)


@pytest.mark.parametrize("value", [-2, -(2**80)])
@wrong(ValueError, "last_epoch = {value}", "at least -1")
def test_last_epoch_below_the_start(optimizer: Any, value: int) -> None:
    lambda_lr(optimizer, CURVE, value)


@pytest.mark.parametrize("value", [0, 7])
@wrong(
    ValueError,
    "last_epoch = {value} with DataClock(8)",
    "DataClock(8, count=n)",
    "load_state_dict",
)
def test_last_epoch_does_not_say_what_was_consumed(optimizer: Any, value: int) -> None:
    lambda_lr(optimizer, CURVE, value, clock=DataClock(8))


@pytest.mark.parametrize(
    "value",
    [
        True,
        DataClock,
        {"kind": "data"},
        {HoldBelow(0.5, 3)},
        iter([PATIENT]),
        [PATIENT, "2"],
        [DataClock(8)],
    ],
)
@wrong(TypeError, "clock = ", "must be a DataClock, ", *NAMES_OF_RULES, "or a list of such rules")
def test_clock_of_a_wrong_type(optimizer: Any, value: Any) -> None:
    lambda_lr(optimizer, CURVE, clock=value)


@pytest.mark.parametrize("value", [[], ()])
@wrong(ValueError, "empty list", "leave it out")
def test_clock_without_rules(optimizer: Any, value: Any) -> None:
    lambda_lr(optimizer, CURVE, clock=value)


@wrong(ValueError, "the same curve")
def test_different_curves_with_a_hold_rule(optimizer: Any) -> None:
    lambda_lr(optimizer, [CURVE, PlateauCurve(30)], clock=PATIENT)


@pytest.mark.parametrize("clock", [PATIENT, [HoldBelow(0.5, 3), PATIENT]])
@wrong(ValueError, "HoldUntilFlat", "a plateau to hold at", "(50, 0)")
def test_curve_without_a_flat_part_to_hold_at(optimizer: Any, clock: Any) -> None:
    curve = PlateauCurve(30, plateaus=[(50, 0)])
    lambda_lr(optimizer, curve, clock=clock)


@pytest.mark.parametrize("curve", [[CURVE, CURVES_IN_UNITS_OF_8[0]], *CURVES_IN_UNITS_OF_8])
@pytest.mark.parametrize("clock", [DataClock(1), DataClock(16)])
@wrong(ValueError, "clock = {clock} must be DataClock(8)")
def test_clock_of_a_different_unit_than_the_curve(optimizer: Any, curve: Any, clock: Any) -> None:
    lambda_lr(optimizer, curve, clock=clock)


@wrong(ValueError, "must be DataClock(8)", "batch plan")
def test_hold_rule_with_a_batch_plan(optimizer: Any) -> None:
    lambda_lr(optimizer, CURVES_IN_UNITS_OF_8[0], clock=HoldBelow(0.5, 3))


def trained_optimizer(kind: Any) -> Optimizer:
    """Return an optimizer after an update, whose learning rate was then set."""
    optimizer = optimizer_with([0.5, 0.25], kind)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return optimizer


def loaded_optimizer(kind: Any) -> Optimizer:
    trained = trained_optimizer(kind)
    state = through_file(trained.state_dict())
    optimizer = optimizer_with([0.5, 0.25], kind)
    optimizer.load_state_dict(state)
    return optimizer


@pytest.mark.parametrize(
    ("build_optimizer", "kind"),
    [(trained_optimizer, AdamW), (loaded_optimizer, AdamW), (trained_optimizer, Adagrad)],
)
@pytest.mark.parametrize("options", [{}, {"clock": PATIENT}], ids=["updates", "hold rule"])
@wrong(
    ValueError,
    "last_epoch = 6, but param_",
    "lr = 0.01 may be",
    '.param_groups[0]["initial_lr"] = ',
    "load_state_dict(state)",
)
def test_learning_rate_that_may_be_decayed(
    build_optimizer: Any, kind: Any, options: dict[str, Any]
) -> None:
    optimizer = build_optimizer(kind)
    lambda_lr(optimizer, CURVE, 6, **options)


# Arguments of follow.


@pytest.mark.parametrize("value", [None, []])
@wrong(TypeError, "optimizer = {value} must be")
def test_optimizer_of_a_follower(value: Any) -> None:
    follow(value, "weight_decay", CURVE)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("decay", "param_groups[0] has no decay"),
        (("betas", 2), "param_groups[0] has no betas[2]"),
        (("weight_decay", 0), "has no weight_decay[0]"),
    ],
)
def test_option_that_no_group_has(optimizer: Any, key: Any, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        follow(optimizer, key, CURVE)


@pytest.mark.parametrize("key", [(0, ""), ("betas", -1), ("betas", "0"), ("betas",), 3])
@wrong(TypeError, "key = {key} must be a key of the parameter groups")
def test_key_of_a_wrong_type(optimizer: Any, key: Any) -> None:
    follow(optimizer, key, CURVE)


@pytest.mark.parametrize("key", ["lr", "initial_lr"])
@wrong(ValueError, "key = {key}", "use lambda_lr")
def test_learning_rate_is_not_for_followers(optimizer: Any, key: str) -> None:
    follow(optimizer, key, CURVE)


@pytest.mark.parametrize("key", ["betas", "params", "amsgrad"])
@wrong(TypeError, "be a number")
def test_option_that_is_not_a_number(optimizer: Any, key: str) -> None:
    follow(optimizer, key, CURVE)


# Options of the groups.


def optimizer_with_option(name: str, value: Any) -> Optimizer:
    optimizer = optimizer_with([0.1, 0.1], AdamW)
    optimizer.param_groups[1][name] = value
    return optimizer


NOT_NUMBERS = [None, "0.1", True, 1j, [0.1], torch.tensor(1)]
NOT_POSITIVE_FLOAT32 = [-0.1, -1e-300, INF, 1e-40, 3.5e38, 10**400]
NOT_POSITIVE_TENSORS = [torch.tensor(NAN), torch.tensor(-0.1)]
wrong_type = pytest.mark.parametrize("value", NOT_NUMBERS)
wrong_value = pytest.mark.parametrize("value", NOT_POSITIVE_FLOAT32 + NOT_POSITIVE_TENSORS)


@wrong_type
@pytest.mark.parametrize("option", ["lr", "initial_lr"])
@wrong(TypeError, " of param_groups[1] = ")
def test_type_of_a_groups_learning_rate(option: str, value: Any) -> None:
    optimizer = optimizer_with_option(option, value)
    lambda_lr(optimizer, CURVE)


@wrong_value
@pytest.mark.parametrize("option", ["lr", "initial_lr"])
@wrong(ValueError, " of param_groups[1] = ")
def test_value_of_a_groups_learning_rate(option: str, value: Any) -> None:
    optimizer = optimizer_with_option(option, value)
    lambda_lr(optimizer, CURVE)


@wrong_type
@wrong(TypeError, " of param_groups[1] = ")
def test_type_of_a_followed_option(value: Any) -> None:
    optimizer = optimizer_with_option("weight_decay", value)
    follow(optimizer, "weight_decay", CURVE)


@wrong_value
@wrong(ValueError, " of param_groups[1] = ")
def test_value_of_a_followed_option(value: Any) -> None:
    optimizer = optimizer_with_option("weight_decay", value)
    follow(optimizer, "weight_decay", CURVE)


# Arguments of count_updates.


not_integers = pytest.mark.parametrize("value", [True, 8.0, "8", None])
below_one = pytest.mark.parametrize("value", [0, -1])


@pytest.mark.parametrize("loader", [0, -1, []])
@wrong(ValueError, "batches = ", "must be at least 1")
def test_loader_without_batches(loader: Any) -> None:
    count_updates(loader, 2)


@below_one
@wrong(ValueError, "epochs = {value} must be at least 1")
def test_epochs_below_one(value: int) -> None:
    count_updates(10, value)


@not_integers
@wrong(TypeError, "epochs = {value} must be an integer")
def test_epochs_of_a_wrong_type(value: Any) -> None:
    count_updates(10, value)


@below_one
@wrong(ValueError, "accumulation = {value} must be")
def test_accumulation_below_one(value: int) -> None:
    count_updates(10, 2, accumulation=value)


@not_integers
@wrong(TypeError, "accumulation = {value}", "integer")
def test_accumulation_of_a_wrong_type(value: Any) -> None:
    count_updates(10, 2, accumulation=value)


# Steps and states. A state is saved after five updates, and loaded after six.

CLOCKS: dict[str, Any] = {"scheduler": None, "held": PATIENT, "counted": DataClock(8)}
KINDS = [*CLOCKS, "follower"]


def run_of(kind: str, curve: Any = CURVE, peaks: Any = (0.25, 0.7), **options: Any) -> SchedulerRun:
    if kind == "follower":
        return FollowerRun(curve, peaks, **options)
    return SchedulerRun(curve, peaks, CLOCKS[kind], **options)


@dataclass
class Saved:
    """A run of six updates, and its state after five."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = run_of(self.name, **self.options)
        self.run.train(5)
        self.state = copy.deepcopy(self.run.part.state_dict())
        self.run.train(1)

    def load(self, **entries: Any) -> None:
        """Load the state with these entries instead of its own."""
        self.run.part.load_state_dict(self.state | entries)


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest) -> Iterator[Saved]:
    """Each kind of run; it must be unharmed at the end."""
    yield from unharmed(Saved(request.param))


@pytest.fixture(params=[True, False], ids=["strict", "not strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def scheduler(strict: bool) -> Iterator[Saved]:
    yield from unharmed(Saved("scheduler", {"strict": strict}))


@pytest.fixture
def held(strict: bool) -> Iterator[Saved]:
    yield from unharmed(Saved("held", {"strict": strict}))


@pytest.fixture
def counted(strict: bool) -> Iterator[Saved]:
    yield from unharmed(Saved("counted", {"strict": strict}))


@pytest.fixture
def follower() -> Iterator[Saved]:
    yield from unharmed(Saved("follower"))


def unharmed(saved: Saved) -> Iterator[Saved]:
    before = saved.run.shown()
    yield saved
    assert equal_trees(saved.run.shown(), before)


# Wrong steps.


@pytest.mark.parametrize("epoch", [0.5, 3.0, True, "x", (3,), torch.tensor(3), torch.ones(())])
def test_epoch_of_a_wrong_type(scheduler: Saved, epoch: Any) -> None:
    message = r"epoch = .* must be an integer.*call step\(\)"
    with pytest.raises(TypeError, match=message) as caught:
        scheduler.run.part.step(epoch)
    assert "takes a loss only with a hold rule" in str(caught.value)


@pytest.mark.parametrize("peak", [-0.1, NAN, 1e-40])
def test_peak_that_is_not_positive(scheduler: Saved, peak: float) -> None:
    with pytest.raises(ValueError, match="peak = "):
        scheduler.run.part.set_peak(peak)


@pytest.mark.parametrize("peak", ["0.1", None, True])
def test_peak_of_a_wrong_type(scheduler: Saved, peak: Any) -> None:
    with pytest.raises(TypeError, match=f"peak = {peak!r}"):
        scheduler.run.part.set_peak(peak)


@pytest.mark.parametrize("peaks", [[0.1], [0.1] * 3, torch.ones(3)])
def test_number_of_peaks(scheduler: Saved, peaks: Any) -> None:
    with pytest.raises(ValueError, match=r"peak has .* groups is 2"):
        scheduler.run.part.set_peak(peaks)


def test_second_peak_that_is_not_positive(scheduler: Saved) -> None:
    with pytest.raises(ValueError, match=r"peak\[1\] = -1\.0"):
        scheduler.run.part.set_peak([0.1, -1.0])


def test_second_peak_of_a_wrong_type(scheduler: Saved) -> None:
    with pytest.raises(TypeError, match=r"peak\[1\] = None"):
        scheduler.run.part.set_peak([0.1, None])


def test_new_group_with_wrong_lr_changes_nothing() -> None:
    run = SchedulerRun(CURVE)
    run.train(1)
    state = run.shown()
    run.add_group(0.1)
    run.optimizer.param_groups[-1]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"param_groups\[2\] = -1.0"):
        run.step_part()
    del run.optimizer.param_groups[-1]
    assert equal_trees(run.shown(), state)


# States that belong to something else.


@pytest.mark.parametrize("path", ["a/a.pt", b"a.pt", Path("a.pt")])
def test_path_instead_of_a_state(saved: Saved, path: Any) -> None:
    with pytest.raises(ValueError, match=r"state_dict = .* is a path") as caught:
        saved.run.part.load_state_dict(path)
    assert "load the file first, load_state_dict(torch" in str(caught.value)


@pytest.mark.parametrize("value", [None, {}, [], 5, {"last_epoch": 3}])
def test_value_that_is_not_a_state(saved: Saved, value: Any) -> None:
    with pytest.raises(ValueError, match="state_dict"):
        saved.run.part.load_state_dict(value)


@pytest.mark.parametrize("name", CLOCKS)
def test_state_of_a_follower(name: str, strict: bool, follower: Saved) -> None:
    run = run_of(name, strict=strict)
    run.rejects(ValueError, "state_dict", lambda: run.part.load_state_dict(follower.state))


def test_state_of_a_scheduler_for_a_follower(follower: Saved, scheduler: Saved) -> None:
    with pytest.raises(ValueError, match="state_dict"):
        follower.run.part.load_state_dict(scheduler.state)


def test_state_of_cyclic_lr_has_no_peak(scheduler: Saved) -> None:
    optimizer = optimizer_with([0.1, 0.1])
    cyclic = CyclicLR(optimizer, 0.1, 0.5, cycle_momentum=False)
    with pytest.raises(ValueError, match="base_lrs are not the peaks") as caught:
        scheduler.run.part.load_state_dict(cyclic.state_dict())
    message = str(caught.value)
    assert "last_epoch=-1), and then" in message
    assert "scheduler.set_peak(peak)" in message


def test_state_of_one_cycle_lr_has_no_peak(scheduler: Saved) -> None:
    optimizer = optimizer_with([0.1, 0.1])
    one_cycle = OneCycleLR(optimizer, 0.1, 9, cycle_momentum=False)
    with pytest.raises(ValueError, match=r"OneCycleLR.* not the peaks.*last_epoch=-1"):
        scheduler.run.part.load_state_dict(one_cycle.state_dict())


# States of a different version, and damaged ones.

DIFFERENT_VERSION = "saved by a different version of plateau-jax"


def test_every_entry_is_required(saved: Saved) -> None:
    for name in saved.state:
        state = dict(saved.state)
        del state[name]
        with pytest.raises(ValueError, match=f"{name}.*{DIFFERENT_VERSION}|state_dict"):
            saved.run.part.load_state_dict(state)


@pytest.mark.parametrize(
    "entries",
    [{"format": 0}, {"format": 3}, {"format": None}, {"more": 1}, {"curve_step": 5}],
    ids=str,
)
def test_different_format_is_a_different_version(saved: Saved, entries: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=DIFFERENT_VERSION):
        saved.load(**entries)


def check_damaged_entry(saved: Saved, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        saved.load(**{name: value})
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last_epoch", 2.5),
        ("last_epoch", None),
        ("last_epoch", -2),
        ("hold", 5),
        ("hold", [{}]),
        ("records", None),
        ("records", []),
        ("peak_was_set", None),
        ("in_charge", 1),
    ],
)
def test_damaged_state(saved: Saved, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"state_dict|{name}"):
        saved.load(**{name: value})


@pytest.mark.parametrize("offset", [-20, 1.5, None, True])
def test_damaged_offset(scheduler: Saved, offset: Any) -> None:
    check_damaged_entry(scheduler, "offset", offset)


@pytest.mark.parametrize("consumed", [-1, 2.0, None, True, 2**62 + 8])
def test_damaged_sum_of_counts(counted: Saved, consumed: Any) -> None:
    check_damaged_entry(counted, "consumed", consumed)


@pytest.mark.parametrize("peak", [-0.1, NAN, "x"])
def test_damaged_peak(saved: Saved, peak: Any) -> None:
    records = [record | {"peak_value": peak} for record in saved.state["records"]]
    with pytest.raises(ValueError, match="peak_value"):
        saved.load(records=records)


@pytest.mark.parametrize("unit", [0, 8.0, "8"])
def test_damaged_unit(counted: Saved, unit: Any) -> None:
    clock = counted.state["records"][0]["clock"] | {"unit": unit}
    records = [record | {"clock": clock} for record in counted.state["records"]]
    with pytest.raises(ValueError, match="unit"):
        counted.load(records=records)


@pytest.mark.parametrize("key", ["momentum", ["weight_decay", 0], None])
def test_state_of_a_different_option(follower: Saved, key: Any) -> None:
    check_damaged_entry(follower, "key", key)


@pytest.mark.parametrize("groups", [[0], [1, 0], None])
def test_state_of_different_groups(follower: Saved, groups: Any) -> None:
    with pytest.raises(ValueError, match="weight_decay for param_groups"):
        follower.load(groups=groups)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("updates", 1.0),
        ("filled", -1),
        ("stale", 2**31),
        ("best", "0.1"),
        ("best", NAN),
        ("total", 1),
        ("more", 1),
    ],
)
@wrong(ValueError)
def test_damaged_state_of_a_hold_rule(held: Saved, name: str, value: Any) -> None:
    rule_state = held.state["hold"][0] | {name: value}
    held.load(hold=[rule_state])


MODES: list[tuple[str, dict[str, Any]]] = [
    ("scheduler", {"strict": True}),
    ("scheduler", {"strict": False}),
    ("held", {"strict": True}),
    ("held", {"strict": False}),
    ("counted", {"strict": True}),
    ("counted", {"strict": False}),
    ("follower", {}),
]


@pytest.mark.filterwarnings("ignore:the (values|learning rates) so far:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:state_dict has a diff:plateau_jax.CurveWarning")
@pytest.mark.parametrize(("name", "options"), MODES)
@examples(100)
@given(data=st.data())
def test_any_damage_is_rejected_or_harmless(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    run = run_of(name, **options)
    run.train(5)
    saved = copy.deepcopy(run.part.state_dict())
    state = damaged(data.draw, saved)
    run.train(1)
    before = run.shown()
    try:
        run.part.load_state_dict(state)
    except ValueError:
        assert equal_trees(run.shown(), before)
    else:
        run.train(1)
        values = np.array(run.values(), dtype=float)
        assert np.isfinite(values).all()


# States of a different curve, at step 40. The message shows at most two differences.

OLD = PlateauCurve(64, warmup_steps=5)
LONGER = PlateauCurve(96, warmup_steps=5)
COOLED = OLD.cooldown(20, 10)


def stairs(stages: int, changed: int | None = None) -> StagedCurve:
    """Return a curve of stages that fall by 0.01, but for one that ends at 0.5."""
    steps: list[tuple[int, float, str]] = []
    for stage in range(stages):
        level = 1 - 0.01 * stage
        if stage == changed:
            level = 0.5
        steps.append((1, level, "cosine"))
    return StagedCurve(steps)


def resume(saved: Any, current: Any, name: str = "scheduler") -> None:
    """Load the state of 40 updates under another curve."""
    groups = 1
    if isinstance(saved, list):
        groups = len(saved)
    old = run_of(name, saved, [0.1] * groups)
    old.train(40)
    state = through_file(old.part.state_dict())
    new = run_of(name, current, [0.1] * groups)
    new.part.load_state_dict(state)


@wrong(
    ValueError,
    "state_dict cannot resume at step 40",
    " total_steps=64, now 96",
    "the values differ from step 6 on; to train longer, keep the lengths of the phases so far",
    "; otherwise resume with the old curve, or pass strict=False",
    "lambda_lr if",
)
def test_longer_curve() -> None:
    resume(OLD, LONGER)


@wrong(CurveWarning, "the values differ from step 6 on", "at step 40 of")
def test_longer_curve_of_a_follower() -> None:
    resume(OLD, LONGER, "follower")


@wrong(ValueError, "=64, now 9; warmup_steps=5, now 0; …,")
def test_curve_with_three_differences() -> None:
    short = PlateauCurve(9, plateaus=[(0, 50)])
    resume(OLD, short)


@wrong(ValueError, " curve.total_steps=64, now 96, and the values differ")
def test_cooldown_of_a_longer_curve() -> None:
    resume(COOLED, LONGER.cooldown(20, 10))


@wrong(
    ValueError,
    " curve=a PlateauCurve of 64 steps, now a Then of 160 steps; at=20, now 9; …, and the",
)
def test_cooldown_of_a_curve_of_another_kind() -> None:
    resume(COOLED, OLD.then(LONGER).cooldown(9, 9))


@wrong(ValueError, " stages[38]=[1, 0.62, 'cosine'], now [1, 0.5, 'cos")
def test_stage_with_a_different_level() -> None:
    resume(stairs(50), stairs(50, changed=38))


@wrong(ValueError, " stages[38]=[1, 0.62, 'cosine'], now None, and")
def test_fewer_stages() -> None:
    resume(stairs(50), stairs(38))


@wrong(ValueError, " a StagedCurve of 50 steps, now a PlateauCurve of 96 steps,")
def test_curve_of_another_kind() -> None:
    resume(stairs(50), LONGER)


@wrong(ValueError, "group 1 differ")
def test_different_curve_of_the_second_group() -> None:
    resume([OLD, OLD], [OLD, LONGER])


UNREADABLE_CURVES = [
    5,
    None,
    {},
    [],
    {"kind": "later"},
    {"total_steps": 5, "more": 1},
    {"total_steps": 5, "format": 2},
    {"total_steps": 5, "decay_shape": "spiral"},
    {"total_steps": 5, "warmup_steps": [4, "linear"]},
    {"steps": 5},
]


@pytest.mark.parametrize("curve", UNREADABLE_CURVES, ids=str)
def test_curve_that_cannot_be_read_is_always_an_error(saved: Saved, curve: Any) -> None:
    """Nothing was compared: neither a follower nor `strict=False` accepts it."""
    saved.run.part.strict = False
    records = [record | {"curve": curve} for record in saved.state["records"]]
    with pytest.raises(ValueError, match=r"state_dict|records"):
        saved.load(records=records)
