"""A saved state names its kind. Those of later versions are rejected, of earlier ones read."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass, replace
from itertools import permutations
from typing import Any, TypedDict

import numpy as np
import pytest
import torch
from clocks.rules.specs import ONE_OF_EACH
from hypothesis import given, strategies as st
from support.trees import equal_trees
from torch import nn
from torch.utils.data import TensorDataset

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveScheduler,
    CurveWarning,
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    resume_record,
)
from plateau_jax.clocks.clock import CLOCKS
from plateau_jax.saved_states.formats import Format, added_later
from torch_bridge import MetricLog, TrainStep, follow, lambda_lr, make_loader, prefetch
from torch_bridge.data import resumable_loader
from torch_bridge.loop import metric_log
from torch_bridge.schedulers import follower as follower_module, scheduler_state
from torch_bridge.schedulers.scheduler_state import (
    SCHEDULER,
    _SchedulerState,
    read_scheduler_state,
)
from torch_bridge.training import step_state
from torch_bridge.training.step_state import TRAIN_STEP, TrainStepState

NEWER = "saved by a newer version: update plateau-jax"
UNKNOWN = f"which this version does not know. Either it was {NEWER}; or the program added the entry"
CURVE = PlateauCurve(64, warmup_steps=4, plateaus=[(0, 50)])
SAMPLES = torch.arange(24.0)


def new_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)


def scheduler() -> Any:
    return lambda_lr(new_optimizer(), CURVE)


def counting_scheduler() -> Any:
    return lambda_lr(new_optimizer(), CURVE, clock=DataClock(8, count=4))


def held_scheduler() -> Any:
    return lambda_lr(new_optimizer(), CURVE, clock=HoldUntilFlat(2, limit=9))


def follower() -> Any:
    return follow(new_optimizer(), "momentum", CURVE)


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def step() -> Any:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    return TrainStep(model, optimizer, mean_square, CURVE)


def log() -> Any:
    return MetricLog(every=3)


def loader() -> Any:
    return make_loader(TensorDataset(SAMPLES), 4, device="cpu", num_workers=0)


def feed() -> Any:
    return prefetch(loader(), "cpu")


def curve_scheduler() -> CurveScheduler:
    return CurveScheduler(CURVE, 0.5, clock=DataClock(8, count=16))


Build = Callable[[], Any]

PARTS: list[Build] = [
    scheduler,
    counting_scheduler,
    held_scheduler,
    follower,
    curve_scheduler,
    step,
    log,
    loader,
    feed,
]
of_every_part = pytest.mark.parametrize("build", PARTS)


def check_rejected(part: Any, state: Any) -> str:
    """Load a state that is rejected, and changes nothing; return the message."""
    before = copy.deepcopy(part.state_dict())
    with pytest.raises(ValueError, match=r"state_dict|format = |hold has|records\[0\]") as caught:
        part.load_state_dict(state)
    assert equal_trees(part.state_dict(), before)
    return str(caught.value)


def with_changed_record(state: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a scheduler with these entries in the record of its group."""
    (record,) = state["records"]
    return state | {"records": [record | entries]}


# The kind and the number of a state.


@of_every_part
def test_state_names_its_kind_and_format(build: Build) -> None:
    state = build().state_dict()
    assert list(state)[:2] == ["kind", "format"]
    assert isinstance(state["kind"], str)
    assert state["format"] == 1


TORCH_PARTS: list[Build] = [scheduler, follower, step, log, loader]


def test_kinds_differ() -> None:
    kinds = {build().state_dict()["kind"] for build in TORCH_PARTS}
    kinds.add(resume_record(CURVE)["kind"])
    assert len(kinds) == 6


@of_every_part
def test_state_with_an_unknown_entry_is_from_a_newer_version(build: Build) -> None:
    part = build()
    state = part.state_dict()
    message = check_rejected(part, state | {"compressed": True})
    assert message == f"state_dict has the entry 'compressed', {UNKNOWN}"


@of_every_part
def test_renamed_entry_is_damage(build: Build) -> None:
    """Its new name is unknown too, but no version drops an entry."""
    part = build()
    state = part.state_dict()
    for entry in required_entries(state) - {"kind"}:
        renamed = dict(state)
        renamed["renamed"] = renamed.pop(entry)
        message = check_rejected(part, renamed)
        assert f"it has no '{entry}'" in message
        assert NEWER not in message


@of_every_part
def test_state_of_a_higher_format_is_from_a_newer_version(build: Build) -> None:
    part = build()
    state = part.state_dict()
    message = check_rejected(part, state | {"format": 2})
    assert message == f"state_dict has format 2, so it was {NEWER}"


@of_every_part
@pytest.mark.parametrize("number", [0, -1, 1.5, "1", True, None])
def test_wrong_number_is_damage(build: Build, number: Any) -> None:
    part = build()
    state = part.state_dict()
    message = check_rejected(part, state | {"format": number})
    assert "format = " in message
    assert NEWER not in message


@pytest.mark.parametrize("number", [np.int64(2), np.array(2), torch.tensor(2)])
def test_number_of_any_integer_type_is_compared(number: Any) -> None:
    part = scheduler()
    state = part.state_dict()
    message = check_rejected(part, state | {"format": number})
    assert NEWER in message


# Entries that are missing, and states of something else.

FORMATS: list[Format[Any]] = [
    SCHEDULER,
    TRAIN_STEP,
    follower_module._FORMAT,
    metric_log._FORMAT,
    resumable_loader._FORMAT,
]
OPTIONAL_ENTRIES = {entries.kind: entries.defaults for entries in FORMATS}
"""The entries that a state of an earlier version may lack, by its kind."""


def required_entries(state: dict[str, Any]) -> set[str]:
    optional = OPTIONAL_ENTRIES.get(state["kind"], {})
    # lr_lambdas is for torch's LambdaLR.
    return state.keys() - optional.keys() - {"lr_lambdas"}


@of_every_part
def test_each_missing_entry_is_damage(build: Build) -> None:
    part = build()
    state = part.state_dict()
    for entry in required_entries(state):
        damaged = dict(state)
        del damaged[entry]
        message = check_rejected(part, damaged)
        assert f"it has no '{entry}'" in message


@pytest.mark.parametrize(("build", "build_other"), list(permutations(TORCH_PARTS, 2)))
def test_state_of_another_kind_is_named(build: Build, build_other: Build) -> None:
    state = build_other().state_dict()
    message = check_rejected(build(), state)
    assert message.startswith("state_dict is not the state of ")
    assert NEWER not in message


@of_every_part
@pytest.mark.parametrize("value", [None, [], 5, torch.ones(2)], ids=repr)
def test_value_that_is_no_state_is_shown(build: Build, value: Any) -> None:
    message = check_rejected(build(), value)
    assert message.startswith(f"state_dict = {value!r} is not the state of ")


# Clocks and rules.


def test_rule_of_a_newer_version() -> None:
    part = held_scheduler()
    state = part.state_dict()
    (rule_state,) = state["hold"]
    later_rule = rule_state | {"cooldown": 3}
    message = check_rejected(part, state | {"hold": [later_rule]})
    assert message == f"hold has the entry 'cooldown', {UNKNOWN}"


@dataclass(frozen=True)
class _LaterRule(HoldUntilFlat):
    cooldown: int = added_later(0)


def test_clock_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that was added later has a default, so the clock is the same."""
    saved = resume_record(CURVE, clock=HoldUntilFlat(2, limit=9))
    monkeypatch.setitem(CLOCKS, "hold_until_flat", _LaterRule)
    same_clock = resume_record(CURVE, clock=_LaterRule(2, limit=9))
    check_resume(saved, same_clock, 3)
    new_clock = resume_record(CURVE, clock=_LaterRule(2, limit=9, cooldown=5))
    with pytest.raises(ValueError, match="it was saved with clock="):
        check_resume(saved, new_clock, 3)


DATA_CLOCK_WITH_A_PHASE = DataClock(8, count=4).to_dict() | {"phase": 3}


@pytest.mark.parametrize(
    ("clock", "problem"),
    [
        (DATA_CLOCK_WITH_A_PHASE, f"the clock of saved has the entry 'phase', {UNKNOWN}"),
        (
            {"kind": "time", "seconds": 60},
            f"saved has a clock of the kind 'time', so it was {NEWER}",
        ),
        (
            [{"kind": "hold_in_a_later_version", "value": 3.0}],
            f"saved has a clock of the kind 'hold_in_a_later_version', so it was {NEWER}",
        ),
    ],
)
def test_clock_of_a_newer_version(clock: Any, problem: str) -> None:
    record = resume_record(CURVE, 0.5)
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        check_resume(record | {"clock": clock}, record, 3)


# Records and curves.


@pytest.mark.parametrize("entries", [{"format": 2}, {"host": "a"}])
def test_record_of_a_newer_version(entries: dict[str, Any]) -> None:
    record = resume_record(CURVE, 0.5)
    with pytest.raises(ValueError, match=f"^saved has .*{NEWER}"):
        check_resume(record | entries, record, 3)


@pytest.mark.parametrize("entries", [{"format": 2}, {"host": "a"}])
def test_record_of_a_newer_version_in_a_state(entries: dict[str, Any]) -> None:
    part = scheduler()
    later_state = with_changed_record(part.state_dict(), entries)
    message = check_rejected(part, later_state)
    assert message.startswith("records[0] has ")
    assert NEWER in message


STAGED = StagedCurve([(3, 1.0)])
NEWER_STAGED = STAGED.to_dict() | {"format": 2}

NEWER_CURVES: dict[str, dict[str, Any]] = {
    "an argument": CURVE.to_dict() | {"tail": 3},
    "a kind": {"kind": "spiral", "total_steps": 9},
    "a number": CURVE.to_dict() | {"format": 2},
    "a number within": CURVE.then(STAGED).to_dict() | {"other": NEWER_STAGED},
}
of_newer_curves = pytest.mark.parametrize("arguments", NEWER_CURVES.values(), ids=NEWER_CURVES)


@of_newer_curves
def test_curve_of_a_newer_version(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=NEWER):
        Curve.from_dict(arguments)


@of_newer_curves
def test_curve_of_a_newer_version_in_a_state(arguments: dict[str, Any]) -> None:
    part = scheduler()
    later_state = with_changed_record(part.state_dict(), {"curve": arguments})
    message = check_rejected(part, later_state)
    assert message.startswith("records[0] has a curve that cannot be read: ")
    assert NEWER in message


@pytest.mark.parametrize("number", [1, None])
def test_number_of_a_curve_may_be_stated(number: int | None) -> None:
    """As of any argument, None means that it was left out."""
    arguments = CURVE.to_dict() | {"format": number}
    assert Curve.from_dict(arguments) == CURVE


def test_plan_of_a_newer_version() -> None:
    plan = BatchPlan([(0, 8), (80, 16)])
    arguments = plan.to_dict() | {"reference": 3}
    with pytest.raises(ValueError, match=NEWER):
        BatchPlan.from_dict(arguments)


# A version that adds an entry, or raises a number.


class _LaterState(TrainStepState):
    note: str


def test_absent_later_entry_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version with one more entry reads this one's states; this one rejects that version's."""
    state = step().state_dict()
    later_state = state | {"note": "mine"}
    message = check_rejected(step(), later_state)
    assert NEWER in message

    defaults = {**TRAIN_STEP.defaults, "note": "none"}
    later: Format[Any] = replace(TRAIN_STEP, entries=_LaterState, defaults=defaults)
    assert later.read("state_dict", state) == defaults | state
    assert later.read("state_dict", later_state) == defaults | later_state

    monkeypatch.setattr(step_state, "TRAIN_STEP", later)
    part = step()
    part.load_state_dict(later_state)
    part.load_state_dict(state)


# A run that uses nothing new can return to the version before: new entries are not written.


drawn_entries = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@given(drawn_entries, drawn_entries)
def test_entry_is_written_only_if_it_differs(entries: Any, defaults: Any) -> None:
    numbers: Format[Any] = Format("numbers", dict[str, Any], defaults)
    written = numbers.write(**entries)
    assert list(written)[:2] == ["kind", "format"]
    all_entries = {"kind": "numbers", "format": 1} | defaults | entries
    assert defaults | written == all_entries
    for name, value in written.items():
        assert name not in defaults or value != defaults[name]


class _LaterSchedulerState(_SchedulerState):
    note: str


def test_state_of_torch_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version with one more entry still continues from torch's schedulers."""
    torchs = torch.optim.lr_scheduler.LambdaLR(new_optimizer(), lambda step: 1.0)
    defaults = {**SCHEDULER.defaults, "note": "none"}
    later: Format[Any] = replace(SCHEDULER, entries=_LaterSchedulerState, defaults=defaults)
    monkeypatch.setattr(scheduler_state, "SCHEDULER", later)
    entries = read_scheduler_state(torchs.state_dict())
    assert defaults.items() <= entries.items()


def with_a_later_argument(rule: Any) -> Any:
    """Return the same rule, of a version whose class has one more argument."""
    later = ("cooldown", int, added_later(0))
    later_class = make_dataclass("Later", [later], bases=(type(rule),), frozen=True)
    return later_class(**{field.name: getattr(rule, field.name) for field in fields(rule)})


@dataclass(frozen=True)
class _LaterDataClock(DataClock):
    phase: int = added_later(0)


LATER_VALUES = [(_LaterDataClock(8), DataClock(8))]
for rule in ONE_OF_EACH:
    LATER_VALUES.append((with_a_later_argument(rule), rule))


@pytest.mark.parametrize(("later", "earlier"), LATER_VALUES, ids=repr)
def test_later_argument_is_written_only_if_it_differs(later: Any, earlier: Any) -> None:
    """All arguments of the first version are written, so that a description is complete."""
    written = earlier.to_dict()
    assert later.to_dict() == written
    names = {field.name for field in fields(earlier)}
    assert names <= written.keys()


@pytest.fixture
def decay_shape_was_added_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first version of a `PlateauCurve` had always decayed along a cosine."""
    (argument,) = [field for field in fields(PlateauCurve) if field.name == "decay_shape"]
    monkeypatch.setattr(argument, "metadata", added_later("cosine").metadata)


@pytest.mark.usefixtures("decay_shape_was_added_later")
@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_curve_with_a_later_argument(shape: str) -> None:
    """An earlier version reads its description if the argument has its default."""
    with pytest.warns(CurveWarning, match="looks like a learning rate"):
        curve = PlateauCurve(100, min_lr_ratio=1e-5, decay_shape=shape)
    written = curve.to_dict()
    assert ("decay_shape" in written) == (shape != "cosine")
    assert Curve.from_dict(written) == curve  # silently, as it has all arguments of its version
    assert Curve.from_dict(written | {"decay_shape": shape}) == curve


@pytest.mark.usefixtures("decay_shape_was_added_later")
def test_later_argument_that_differs_is_named() -> None:
    saved = resume_record(PlateauCurve(100))
    now = resume_record(PlateauCurve(100, decay_shape="linear"))
    with pytest.raises(ValueError, match="decay_shape='cosine', now 'linear'"):
        check_resume(saved, now, 50)


def test_later_argument_of_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    state = loader().state_dict()
    monkeypatch.setitem(resumable_loader._MADE_WITH_DEFAULTS, "sampler", "uniform")
    later = loader()
    later.batch_sampler.made_with["sampler"] = "uniform"
    assert later.state_dict() == state
    later.load_state_dict(state)
    later.batch_sampler.made_with["sampler"] = "weighted"
    message = check_rejected(later, state)
    assert "sampler = 'uniform' (now weighted)" in message
    message = check_rejected(loader(), later.state_dict())
    assert "sampler = 'weighted' (now None)" in message


def test_loader_of_a_newer_version() -> None:
    state = loader().state_dict()
    state["made_with"]["sampler"] = "weighted"
    message = check_rejected(loader(), state)
    assert NEWER in message


class _FirstState(TypedDict):
    kind: str
    format: int
    rows: list[int]


def test_earlier_number_is_read() -> None:
    """A higher number keeps earlier versions from reading what would mislead them, and no more."""
    raised: Format[Any] = Format("rows", _FirstState, number=3)
    for number in (1, 2, 3):
        state = {"kind": "rows", "format": number, "rows": [1]}
        assert raised.read("state", state) == state
    with pytest.raises(ValueError, match=rf"^state has format 4, so it was {NEWER}$"):
        raised.read("state", {"kind": "rows", "format": 4, "rows": [1]})
