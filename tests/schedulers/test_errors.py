"""Wrong arguments, steps and states: each error names what is wrong, and nothing has changed."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import CURVE, PATIENT
from support.curves.descriptions import OF_UNIT_8
from support.damage import damage
from support.errors import Row, check_error, each, each_row
from support.examples import examples
from support.schedulers.driven import Driven
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from torch.optim import Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR

from plateau_jax import CurveWarning, DataClock, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import count_updates, follow, lambda_lr

BELOW = HoldBelow(0.5, 3)
NAN, INF = float("nan"), float("inf")


# Arguments of the functions that build.


class NoLength:
    def __len__(self) -> int:
        raise NotImplementedError


class TooFew(lambda_lr):
    def get_lr(self) -> Any:
        return super().get_lr()[:1]


def with_decayed_lr(kind: Any, loaded: bool) -> Optimizer:
    """Return an optimizer after an update, whose learning rate was then set."""
    optimizer = optimizer_with([0.5, 0.25], kind)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    if loaded:
        state = through_file(optimizer.state_dict())
        optimizer = optimizer_with([0.5, 0.25], kind)
        optimizer.load_state_dict(state)
    return optimizer


def with_option(**option: Any) -> Optimizer:
    optimizer = optimizer_with([0.1, 0.1], AdamW)
    optimizer.param_groups[1].update(option)
    return optimizer


def state_of(scheduler: Any, *arguments: Any) -> Any:
    return scheduler(optimizer_with([0.1, 0.1]), *arguments, cycle_momentum=False).state_dict()


NOT_INTEGERS = [True, 8.0, "8", None]
WITH_OPTION: list[Callable[[Any], Any]] = [
    lambda value: lambda_lr(with_option(lr=value), CURVE),
    lambda value: lambda_lr(with_option(initial_lr=value), CURVE),
    lambda value: follow(with_option(weight_decay=value), "weight_decay", CURVE),
]
DECAYED: list[Callable[[], Optimizer]] = [
    lambda: with_decayed_lr(AdamW, loaded=False),
    lambda: with_decayed_lr(AdamW, loaded=True),
    lambda: with_decayed_lr(Adagrad, loaded=False),
]
BUILDING: list[Row] = [
    *each(lambda value: lambda_lr(value, CURVE), [None, torch.nn.Linear(1, 1), []], TypeError,
          "must be a torch"),
    *each(lambda value: follow(value, "weight_decay", CURVE), [None, []], TypeError,
          "optimizer = {} must be"),
    *each(lambda optimizer, value: lambda_lr(optimizer, value),
          [None, "curve", 5, [CURVE, None], iter([CURVE])], TypeError, "curve = ", "PlateauCurve("),
    *each(lambda optimizer, value: lambda_lr(optimizer, [CURVE] * value), [0, 1, 3], ValueError,
          "curve has {}", "parameter groups is 2"),
    *each(lambda optimizer, value: lambda_lr(optimizer, CURVE, value), [1.0, True, None, "3"], TypeError,
          "last_epoch = {}", "integer"),
    *each(lambda optimizer, value: lambda_lr(optimizer, CURVE, value), [-2, -(2**80)], ValueError,
          "last_epoch = {}", "at least -1"),
    *each(lambda optimizer, value: lambda_lr(optimizer, CURVE, value, clock=DataClock(8)), [0, 7], ValueError,
          "last_epoch = {} with DataClock(8)", "DataClock(8, count=n)", "load_state_dict"),
    *each(lambda optimizer, value: lambda_lr(optimizer, CURVE, clock=value),
          [True, DataClock, {"kind": "data"}, {BELOW}, iter([PATIENT]), [PATIENT, "2"], [DataClock(8)]],
          TypeError, "clock = ", "must be a DataClock, a HoldUntilFlat, a HoldBelow, or a list of"),
    *each(lambda optimizer, value: lambda_lr(optimizer, CURVE, clock=value), [[], ()], ValueError,
          "empty list", "leave it out"),
    (lambda optimizer: lambda_lr(optimizer, [CURVE, PlateauCurve(30)], clock=PATIENT), ValueError,
     "the same curve"),
    *each(lambda optimizer, value: lambda_lr(optimizer, PlateauCurve(30, plateaus=[(50, 0)]), clock=value),
          [PATIENT, [BELOW, PATIENT]], ValueError, "HoldUntilFlat", "a flat part to hold at", "(50, 0)"),
    *(
        row for curve in ([CURVE, OF_UNIT_8[0]], *OF_UNIT_8)
        for row in each(lambda optimizer, value, curve=curve: lambda_lr(optimizer, curve, clock=value),
                        [DataClock(1), DataClock(16)], ValueError, "clock = {} must be DataClock(8)")
    ),
    (lambda optimizer: lambda_lr(optimizer, OF_UNIT_8[0], clock=BELOW), ValueError,
     "must be DataClock(8)", "batch plan"),
    (lambda optimizer: follow(optimizer, "decay", CURVE), ValueError, "param_groups[0] has no decay"),
    (lambda optimizer: follow(optimizer, ("betas", 2), CURVE), ValueError, "param_groups[0] has no betas[2]"),
    (lambda optimizer: follow(optimizer, ("weight_decay", 0), CURVE), ValueError, "has no weight_decay[0]"),
    *each(lambda optimizer, value: follow(optimizer, value, CURVE),
          [(0, ""), ("betas", -1), ("betas", "0"), ("betas",), 3],
          TypeError, "key = {} must be a key of the parameter groups"),
    *each(lambda optimizer, value: follow(optimizer, value, CURVE), ["lr", "initial_lr"], ValueError,
          "key = {}", "use lambda_lr"),
    *each(lambda optimizer, value: follow(optimizer, value, CURVE), ["betas", "params", "amsgrad"], TypeError,
          "be a number"),
    *(
        row for call in WITH_OPTION
        for row in (
            *each(call, [None, "0.1", True, 1j, [0.1], torch.tensor(1)], TypeError, " of param_groups[1] = "),
            *each(call, [-0.1, -1e-300, INF, 1e-40, 3.5e38, 10**400, torch.tensor(NAN), torch.tensor(-0.1)],
                  ValueError, " of param_groups[1] = "),
        )
    ),
    (lambda: TooFew(optimizer_with([0.1, 0.2]), CURVE), ValueError,
     "1 learning rates for 2 parameter groups"),
    *(
        row for call in (lambda value: lambda_lr(value(), CURVE, 6),
                         lambda value: lambda_lr(value(), CURVE, 6, clock=PATIENT))
        for row in each(call, DECAYED, ValueError, "last_epoch = 6, but param_",
                        "lr = 0.01 may be", '.param_groups[0]["initial_lr"] = ', "load_state_dict(state)")
    ),
    *each(lambda value: count_updates(value, 1), [iter([1]), NoLength(), 3.0, True, "9"],
          TypeError, "loader = ", "has no length: give the number of batches"),
    *each(lambda value: count_updates(value, 2), [0, -1, []], ValueError, "batches = ", "must be at least 1"),
    *each(lambda value: count_updates(10, value), [0, -1], ValueError, "epochs = {} must be at least 1"),
    *each(lambda value: count_updates(10, value), NOT_INTEGERS, TypeError, "epochs = {} must be an integer"),
    *each(lambda value: count_updates(10, 2, accumulation=value), [0, -1], ValueError,
          "accumulation = {} must be"),
    *each(lambda value: count_updates(10, 2, accumulation=value), NOT_INTEGERS, TypeError,
          "accumulation = {}", "integer"),
]  # fmt: skip


@each_row(BUILDING)
def test_wrong_argument_is_rejected(row: Row) -> None:
    check_error(row, optimizer=optimizer_with([0.1, 0.1], AdamW))


# What runs: each has made five updates when it is saved, and six when it is called.

RUNS: dict[str, dict[str, Any]] = {
    "scheduler": {},
    "held": {"clock": PATIENT},
    "counted": {"clock": DataClock(8)},
    "follower": {},
}
MODES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"strict": strict}) for name in ("scheduler", "held", "counted") for strict in (True, False)),
    ("follower", {}),  # is never strict
]
"""The runs, and how strict they are."""


def run_of(name: str, curve: Any = CURVE, bases: Any = (0.25, 0.7), **options: Any) -> Driven:
    kind = "follower" if name == "follower" else "scheduler"
    return Driven(kind, curve, bases, **RUNS[name], **options)


def resume(saved: Any, current: Any, part: str = "scheduler") -> None:
    """Load the state of 40 updates under another curve."""
    count = len(saved) if isinstance(saved, list) else 1
    old, new = (run_of(part, curve, [0.1] * count) for curve in (saved, current))
    old.advance(40)
    new.part.load_state_dict(through_file(old.part.state_dict()))


def staged(steps: int, changed: int | None = None) -> StagedCurve:
    return StagedCurve([(1, 0.5 if step == changed else 1 - 0.01 * step, "cosine") for step in range(steps)])


def without(state: Any, name: str) -> Any:
    return {key: value for key, value in state.items() if key != name}


def with_rule_state(state: Any, **entries: Any) -> Any:
    state = copy.deepcopy(state)
    state["hold"][0] |= entries
    return state


def with_clock(state: Any, clock: Any) -> Any:
    return state | {"records": [record | {"clock": clock} for record in state["records"]]}


def damaged(run: str, name: str, values: list[Any]) -> list[tuple[str, Row]]:
    """Return a row for each wrong value of an entry of a state, and for a state without it."""
    return of(
        run,
        *each(
            lambda part, state, value: part.load_state_dict(state | {name: value}), values, ValueError, name
        ),
        (lambda part, state: part.load_state_dict(without(state, name)), ValueError, name),
    )


def of(run: str, *rows: Row) -> list[tuple[str, Row]]:
    """Return rows whose calls get this run: its `part`, `state`, and the state of a different kind of run."""
    return [(run, row) for row in rows]


RUNNING: list[tuple[str, Row]] = [
    *of(
        "scheduler",
        *each(lambda part, value: part.step(value),
              [0.5, 3.0, True, "x", (3,), torch.tensor(3), torch.ones(())], TypeError,
              "epoch = ", "must be an integer", "call step()", "takes a loss only with a hold rule"),
        *each(lambda part, value: part.set_peak(value), [-0.1, NAN, 1e-40], ValueError, "peak = "),
        *each(lambda part, value: part.set_peak(value), ["0.1", None, True], TypeError, "peak = {}"),
        *each(lambda part, value: part.set_peak(value), [[0.1], [0.1] * 3, torch.ones(3)], ValueError,
              "peak has ", "groups is 2"),
        (lambda part: part.set_peak([0.1, -1.0]), ValueError, "peak[1] = -1.0"),
        (lambda part: part.set_peak([0.1, None]), TypeError, "peak[1] = None"),
    ),
    # The states of others.
    *(
        (run, (lambda torchs, state: torchs.load_state_dict(state), KeyError, "lr_lambdas"))
        for run in ("held", "counted")
    ),
    *(
        (run, row) for run in ("scheduler", "held", "follower") for row in (
            *each(lambda part, value: part.load_state_dict(value), ["a/a.pt", b"a.pt", Path("a.pt")],
                  ValueError, "state_dict = ", "is a path", "load the file first, load_state_dict(torch"),
            *each(lambda part, value: part.load_state_dict(value), [None, {}, [], 5, {"last_epoch": 3}],
                  ValueError, "state_dict"),
            (lambda part, other_state: part.load_state_dict(other_state), ValueError, "state_dict"),
        )
    ),
    # Damaged states.
    *damaged("scheduler", "last_epoch", [2.5, None, -2]),
    *damaged("scheduler", "base_lrs", [[None] * 2, [0.1, -0.1], [0.1, NAN], [], [1] * 3]),
    *damaged("scheduler", "_last_lr", [[], [0.1], [1] * 3, [0.1, None], [0.1, NAN], [0.1, -1.0]]),
    *damaged("held", "curve_step", [-1, 6, 1.5, None]),
    *damaged("held", "hold", [None, 5, [], [{}], [{"rule": PATIENT.to_dict()}]]),
    *damaged("counted", "consumed", [-1, 2.0, None, True, 1, 2**62 + 8]),
    *of("counted", *each(
        lambda part, state, value: part.load_state_dict(with_clock(state, {"kind": "data", "unit": value})),
        [0, 8.0, "8", 5], ValueError, "unit")),
    *damaged("counted", "curve_step", [3, 2.0]),
    *damaged("follower", "curve_step", [-1, 1.5, None]),
    *damaged("follower", "key", ["momentum", ["weight_decay", 0], None]),
    *damaged("follower", "base_values", [[], [0.5] * 3, [0.5, None], [0.5, -0.5]]),
    *of("scheduler", (lambda part, state: part.load_state_dict(state | {"_step_count": "3"}), ValueError,
                      "_step_count")),
    *of("scheduler", *each(
        lambda part, state, value: part.load_state_dict(state | value),
        [{"last_epoch": 7}, {"base_lrs": None}, {"base_lrs": [0.1]}, {"_last_lr": 1}], ValueError)),
    # States of schedulers without a peak.
    *of(
        "scheduler",
        (lambda part: part.load_state_dict(state_of(CyclicLR, 0.1, 0.5)),
         ValueError, "base_lrs are not the peaks", "last_epoch=-1), and then", "scheduler.set_peak(peak)"),
        (lambda part: part.load_state_dict(state_of(OneCycleLR, 0.1, 9)),
         ValueError, "OneCycleLR", "base_lrs are not the peaks", "last_epoch=-1"),
    ),
    *of(
        "follower",
        (lambda part, state: part.load_state_dict(state | {"base_values": None}), ValueError, "state_dict"),
    ),
    *of(
        "held",
        *each(lambda part, state, value: part.load_state_dict(with_rule_state(state, **value)),
              [{"updates": 1.0}, {"filled": -1}, {"stale": 2**31}, {"best": "0.1"}, {"total": 1},
               {"more": 1}],
              ValueError),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode", "row"),
    [(name, mode, row) for name, mode in MODES for run, row in RUNNING if run == name],
)
def test_wrong_step_or_state_is_rejected(name: str, mode: dict[str, Any], row: Row) -> None:
    run = run_of(name, **mode)
    other = run_of("scheduler" if name == "follower" else "follower")
    for one in (run, other):
        one.advance(5)
    objects: dict[str, Any] = {
        "torchs": LambdaLR(optimizer_with([0.5, 0.5]), lambda step: 1.0),
        "state": copy.deepcopy(run.part.state_dict()),
        "other_state": other.part.state_dict(),
    }
    run.advance(1)
    check_error(row, part=run.part, optimizer=run.optimizer, **objects)


OLD, LONGER = PlateauCurve(64, warmup_steps=5), PlateauCurve(96, warmup_steps=5)
COOLED = OLD.cooldown(20, 10)


@each_row(
    [
        (lambda: resume(OLD, LONGER), ValueError, "state_dict cannot resume at step 40",
         " total_steps=64, now 96", "learning rates differ from step 6 on; resume with the old curve, or",
         "pass strict=False", "lambda_lr if"),
        (lambda: resume(OLD, LONGER, "follower"), CurveWarning, "the values differ from step 6 on",
         "at step 40 of"),
        (lambda: resume(OLD, PlateauCurve(9, plateaus=[(0, 50)])), ValueError,
         "=64, now 9; warmup_steps=5, now 0; …,"),
        (lambda: resume(COOLED, LONGER.cooldown(20, 10)), ValueError,
         " curve.total_steps=64, now 96, and the le"),
        (lambda: resume(COOLED, OLD.then(LONGER).cooldown(9, 9)), ValueError,
         " curve=a PlateauCurve of 64 steps, now a Then of 160 steps; at=20, now 9; …, and the"),
        (lambda: resume(staged(50), staged(50, 38)), ValueError,
         " stages[38]=[1, 0.62, 'cosine'], now [1, 0.5, 'cos"),
        (lambda: resume(staged(50), staged(38)), ValueError,
         " stages[38]=[1, 0.62, 'cosine'], now None, and"),
        (lambda: resume(staged(50), LONGER), ValueError,
         " a StagedCurve of 50 steps, now a PlateauCurve of 96 steps,"),
        (lambda: resume([OLD, OLD], [OLD, LONGER]), ValueError,
         "the learning rates of param_groups[1] differ"),
    ]
)  # fmt: skip
def test_different_curve_is_rejected(row: Row) -> None:
    """After 40 updates; the message shows at most two differences."""
    check_error(row)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "curve", [5, None, {}, [], {"kind": "later"}, {"total_steps": 5, "more": 1}], ids=str
)
def test_unreadable_curves_are_an_error_only_if_strict(name: str, curve: Any) -> None:
    run = run_of(name)
    run.advance(5)
    saved_step = run.part.curve_step
    state = run.part.state_dict()
    state["records"] = [record | {"curve": curve} for record in state["records"]]
    run.advance(1)
    if name != "follower":
        run.rejects(ValueError, ".", lambda: run.part.load_state_dict(state))
        run.part.strict = False
    with pytest.warns(CurveWarning, match=r"so far are not compared: records\[0\] has a curve"):
        run.part.load_state_dict(state)
    assert run.part.curve_step == saved_step


@pytest.mark.filterwarnings("ignore:the (values|learning rates) so far:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:state_dict (belongs|was saved|has a diff):plateau_jax.CurveWarning")
@pytest.mark.parametrize(("name", "mode"), MODES)
@examples(100)
@given(data=st.data())
def test_any_damage_is_rejected_or_harmless(name: str, mode: dict[str, Any], data: st.DataObject) -> None:
    run = run_of(name, **mode)
    run.advance(5)
    holder = damage(data, [copy.deepcopy(run.part.state_dict())])
    run.advance(1)
    before = run.shown()
    try:
        run.part.load_state_dict(holder[0])
    except ValueError:
        assert run.shown() == before
    else:
        run.advance(1)
        assert np.isfinite(np.array(run.values(), dtype=float)).all()
