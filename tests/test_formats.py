"""A saved state names its kind. Those of later versions are rejected, of earlier ones read."""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, TypedDict

import numpy as np
import pytest
import torch
from support.training.steps import equal_trees
from torch import nn
from torch.utils.data import TensorDataset

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveScheduler,
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    resume_record,
)
from plateau_jax.clocks.clock import CLOCKS
from plateau_jax.clocks.rules import FlatState
from plateau_jax.validation.formats import Format
from torch_bridge import MetricLog, TrainStep, follow, lambda_lr, make_loader, prefetch
from torch_bridge.data import resumable_loader
from torch_bridge.loop import metric_log
from torch_bridge.schedulers import follower as follower_module
from torch_bridge.schedulers.scheduler_state import SCHEDULER
from torch_bridge.training import step_state
from torch_bridge.training.step_state import TRAIN_STEP, TrainStepState

NEWER = "saved by a newer version: update plateau-jax"
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
    return TrainStep(model, torch.optim.AdamW(model.parameters(), lr=0.5), mean_square, CURVE)


def log() -> Any:
    return MetricLog(every=3)


def loader() -> Any:
    return make_loader(TensorDataset(SAMPLES), 4, device="cpu", num_workers=0)


def feed() -> Any:
    return prefetch(loader(), "cpu")


def curve_scheduler() -> CurveScheduler:
    return CurveScheduler(CURVE, 0.5, clock=DataClock(8, count=16))


PARTS: list[Callable[[], Any]] = [
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
def test_state_names_its_kind_and_format(build: Callable[[], Any]) -> None:
    state = build().state_dict()
    assert list(state)[:2] == ["kind", "format"]
    assert isinstance(state["kind"], str)
    assert state["format"] == 1


def test_kinds_differ() -> None:
    kinds = {build().state_dict()["kind"] for build in (scheduler, follower, step, log, loader)}
    kinds.add(resume_record(CURVE)["kind"])
    assert len(kinds) == 6


@of_every_part
def test_state_with_an_unknown_entry_is_from_a_newer_version(build: Callable[[], Any]) -> None:
    part = build()
    message = check_rejected(part, part.state_dict() | {"compressed": True})
    assert message == f"state_dict has the entry 'compressed', so it was {NEWER}"


@of_every_part
def test_state_of_a_higher_format_is_from_a_newer_version(build: Callable[[], Any]) -> None:
    part = build()
    message = check_rejected(part, part.state_dict() | {"format": 2})
    assert message == f"state_dict has format 2, so it was {NEWER}"


@of_every_part
@pytest.mark.parametrize("number", [0, -1, 1.5, "1", True, None])
def test_wrong_number_is_damage(build: Callable[[], Any], number: Any) -> None:
    part = build()
    message = check_rejected(part, part.state_dict() | {"format": number})
    assert "format = " in message
    assert NEWER not in message


@pytest.mark.parametrize("number", [np.int64(2), np.array(2), torch.tensor(2)])
def test_number_of_any_integer_type_is_compared(number: Any) -> None:
    part = scheduler()
    assert NEWER in check_rejected(part, part.state_dict() | {"format": number})


# Entries that are missing, and states of something else.

OPTIONAL_ENTRIES: dict[str, Collection[str]] = {
    SCHEDULER.kind: SCHEDULER.defaults,
    TRAIN_STEP.kind: TRAIN_STEP.defaults,
    follower_module._FORMAT.kind: follower_module._FORMAT.defaults,
    metric_log._FORMAT.kind: metric_log._FORMAT.defaults,
    resumable_loader._FORMAT.kind: resumable_loader._FORMAT.defaults,
}
"""The entries that a state of an earlier version may lack, by its kind."""


@of_every_part
def test_each_missing_entry_is_damage(build: Callable[[], Any]) -> None:
    part = build()
    state = part.state_dict()
    # lr_lambdas is for torch's LambdaLR.
    optional = {"lr_lambdas", *OPTIONAL_ENTRIES.get(state["kind"], ())}
    for entry in state.keys() - optional:
        damaged = dict(state)
        del damaged[entry]
        assert f"it has no '{entry}'" in check_rejected(part, damaged)


@pytest.mark.parametrize(
    ("build", "build_other"), list(permutations([scheduler, follower, step, log, loader], 2))
)
def test_state_of_another_kind_is_named(
    build: Callable[[], Any], build_other: Callable[[], Any]
) -> None:
    message = check_rejected(build(), build_other().state_dict())
    assert message.startswith("state_dict is not the state of ")
    assert NEWER not in message


@of_every_part
@pytest.mark.parametrize("value", [None, [], 5, torch.ones(2)], ids=repr)
def test_value_that_is_no_state_is_shown(build: Callable[[], Any], value: Any) -> None:
    assert check_rejected(build(), value).startswith(f"state_dict = {value!r} is not the state of ")


# Clocks and rules.


def test_rule_of_a_newer_version() -> None:
    part = held_scheduler()
    state = part.state_dict()
    (rule_state,) = state["hold"]
    message = check_rejected(part, state | {"hold": [rule_state | {"cooldown": 3}]})
    assert message == f"hold has the entry 'cooldown', so it was {NEWER}"


def test_rule_state_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field of a rule's state that was added later has a default."""
    part = held_scheduler()
    state = part.state_dict()
    (rule_state,) = state["hold"]
    del rule_state["best"]
    monkeypatch.setattr(FlatState, "_field_defaults", {"best": 0.25})
    part.load_state_dict(state)
    assert part.state_dict()["hold"][0]["best"] == 0.25


@dataclass(frozen=True)
class _LaterRule(HoldUntilFlat):
    cooldown: int = 0


def test_clock_of_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that was added later has a default, so the clock is the same."""
    saved = resume_record(CURVE, clock=HoldUntilFlat(2, limit=9))
    monkeypatch.setitem(CLOCKS, "hold_until_flat", _LaterRule)
    check_resume(saved, resume_record(CURVE, clock=_LaterRule(2, limit=9)), 3)
    with pytest.raises(ValueError, match="it was saved with clock="):
        check_resume(saved, resume_record(CURVE, clock=_LaterRule(2, limit=9, cooldown=5)), 3)


DATA_CLOCK_WITH_A_PHASE = DataClock(8, count=4).to_dict() | {"phase": 3}


@pytest.mark.parametrize(
    ("clock", "problem"),
    [
        (DATA_CLOCK_WITH_A_PHASE, "the clock of saved has the entry 'phase'"),
        ({"kind": "time", "seconds": 60}, "saved has a clock of the kind 'time'"),
        ([{"kind": "hold_above", "value": 3.0}], "saved has a clock of the kind 'hold_above'"),
    ],
)
def test_clock_of_a_newer_version(clock: Any, problem: str) -> None:
    record = resume_record(CURVE, 0.5)
    with pytest.raises(ValueError, match=f"^{problem}, so it was {NEWER}$"):
        check_resume(record | {"clock": clock}, record, 3)


# Records and curves.


@pytest.mark.parametrize("entries", [{"format": 2}, {"host": "a"}])
def test_record_of_a_newer_version(entries: dict[str, Any]) -> None:
    record = resume_record(CURVE, 0.5)
    with pytest.raises(ValueError, match=f"^saved has .*, so it was {NEWER}$"):
        check_resume(record | entries, record, 3)
    part = scheduler()
    message = check_rejected(part, with_changed_record(part.state_dict(), entries))
    assert message.startswith("records[0] has ")
    assert message.endswith(NEWER)


STAGED = StagedCurve([(3, 1.0)])

NEWER_CURVES: dict[str, dict[str, Any]] = {
    "an argument": CURVE.to_dict() | {"tail": 3},
    "a kind": {"kind": "spiral", "total_steps": 9},
    "a number": CURVE.to_dict() | {"format": 2},
    "a number within": CURVE.then(STAGED).to_dict() | {"other": STAGED.to_dict() | {"format": 2}},
}
of_newer_curves = pytest.mark.parametrize("arguments", NEWER_CURVES.values(), ids=NEWER_CURVES)


@of_newer_curves
def test_curve_of_a_newer_version(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=NEWER):
        Curve.from_dict(arguments)


@of_newer_curves
def test_curve_of_a_newer_version_in_a_state(arguments: dict[str, Any]) -> None:
    part = scheduler()
    message = check_rejected(part, with_changed_record(part.state_dict(), {"curve": arguments}))
    assert message.startswith("records[0] has a curve that cannot be read: ")
    assert NEWER in message


@pytest.mark.parametrize("number", [1, None])
def test_number_of_a_curve_may_be_stated(number: int | None) -> None:
    """As of any argument, None means that it was left out."""
    assert Curve.from_dict(CURVE.to_dict() | {"format": number}) == CURVE


def test_plan_of_a_newer_version() -> None:
    plan = BatchPlan([(0, 8), (80, 16)])
    with pytest.raises(ValueError, match=NEWER):
        BatchPlan.from_dict(plan.to_dict() | {"reference": 3})


# A version that adds an entry, or raises a number.


class _LaterState(TrainStepState):
    note: str


def test_absent_later_entry_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version with one more entry reads this one's states; this one rejects that version's."""
    state = step().state_dict()
    later_state = state | {"note": "mine"}
    assert NEWER in check_rejected(step(), later_state)

    later: Format[Any] = replace(TRAIN_STEP, entries=_LaterState, defaults={"note": "none"})
    assert later.read("state_dict", state) == state | {"note": "none"}
    assert later.read("state_dict", later_state) == later_state

    monkeypatch.setattr(step_state, "TRAIN_STEP", later)
    part = step()
    part.load_state_dict(later_state)
    part.load_state_dict(state)


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
