"""Wrong arguments, steps and states: each error names what is wrong, and nothing has changed."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.scaled import OF_UNIT_8
from support.damage import damage
from support.errors import Row, check_error, each_row
from support.examples import examples
from support.holds.held import CURVE, PATIENT
from support.schedulers.driven import Driven
from support.schedulers.runs import optimizer_with
from support.training.trees import through_file
from torch.optim import Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR

from plateau_jax import CurveWarning, HoldBelow, PlateauCurve, StagedCurve
from torch_bridge import count_updates, follow, lambda_lr

BELOW = HoldBelow(0.5, 3)
NAN, INF = float("nan"), float("inf")


def each(call: str, values: list[str], error: type[Exception], *parts: str) -> list[Row]:
    """Return a row for each value, in place of {} in the call and in the parts of its message."""
    return [(call.format(value), error, *(part.format(value) for part in parts)) for value in values]


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


def two_groups() -> Optimizer:
    return optimizer_with([0.1, 0.1])


NOT_INTEGERS = ["True", "8.0", "'8'", "None"]
SCHEDULE = "lambda_lr(optimizer, CURVE, "
BUILDING: list[Row] = [
    *each("lambda_lr({}, CURVE)", ["None", "torch.nn.Linear(1, 1)", "[]"], TypeError, "must be a torch"),
    *each("follow({}, 'weight_decay', CURVE)", ["None", "[]"], TypeError, "optimizer = {} must be"),
    *each("lambda_lr(optimizer, {})", ["None", "3", "'curve'"], TypeError, "curve = {}", "PlateauCurve("),
    *each("lambda_lr(optimizer, {})", ["{'kind': 1}", "[CURVE, None]", "iter([CURVE])"], TypeError, "curve"),
    *each("lambda_lr(optimizer, [CURVE] * {})", ["0", "1", "3"], ValueError, "{} curves", "2 parameter"),
    *each(SCHEDULE + "{})", ["1.0", "True", "None", "'3'"], TypeError, "last_epoch = {}", "integer"),
    *each(SCHEDULE + "{})", ["-2", str(-(2**80))], ValueError, "last_epoch = {}", "at least -1"),
    *each(SCHEDULE + "{}, unit=8)", ["0", "7"], ValueError, "last_epoch = {} with unit = 8", "load_state"),
    *each(SCHEDULE + "hold={})", ["3", "True", "[PATIENT, '2']"], TypeError, "hold", "a HoldBelow"),
    (SCHEDULE + "hold=[])", ValueError, "no rule"),
    ("lambda_lr(optimizer, [CURVE, PlateauCurve(30)], hold=PATIENT)", ValueError, "the same curve"),
    ("lambda_lr(optimizer, PlateauCurve(30), hold=PATIENT)", ValueError, "needs a flat part to hold at"),
    *each(SCHEDULE + "hold=BELOW, {})", ["unit=8", "count=len"], ValueError, "hold=", "unit= or count="),
    *each(SCHEDULE + "unit={})", ["0", "-8", str(2**62 + 1)], ValueError, "unit = {} must lie in 1"),
    *each(SCHEDULE + "unit={})", NOT_INTEGERS[:3], TypeError, "unit = {} must be an integer"),
    *each(SCHEDULE + "{}count=3)", ["", "unit=8, "], TypeError, "count = 3 must be a function"),
    (SCHEDULE + "count=lambda: 3)", TypeError, "count = ", "needs unit="),
    *each("follow(optimizer, 'weight_decay', CURVE, {})", ["unit=8", "count=len", "strict=False"],
          TypeError, "unexpected keyword argument"),
    *(
        row for curve in ("[CURVE, OF_UNIT_8[0]]", *(f"OF_UNIT_8[{n}]" for n in range(len(OF_UNIT_8))))
        for row in each(f"lambda_lr(optimizer, {curve}, unit={{}})", ["None", "1", "16"],
                        ValueError, "unit = {} must be 8")
    ),
    ("follow(optimizer, 'decay', CURVE)", ValueError, "param_groups[0] has no decay"),
    ("follow(optimizer, ('betas', 2), CURVE)", ValueError, "param_groups[0] has no betas[2]"),
    ("follow(optimizer, ('weight_decay', 0), CURVE)", ValueError, "has no weight_decay[0]"),
    *each("follow(optimizer, {}, CURVE)", ["(0, '')", "('betas', -1)", "('betas', '0')", "('betas',)", "3"],
          TypeError, "key = {} must be a key of the parameter groups"),
    *each("follow(optimizer, {}, CURVE)", ["'lr'", "'initial_lr'"], ValueError, "key = {}", "use lambda_lr"),
    *each("follow(optimizer, {}, CURVE)", ["'betas'", "'params'", "'amsgrad'"], TypeError, "be a number"),
    *(
        row for part in ("lambda_lr(with_option(lr={})", "lambda_lr(with_option(initial_lr={})",
                         "follow(with_option(weight_decay={}), 'weight_decay'")
        for row in (
            *each(part + ", CURVE)", ["None", "'0.1'", "True", "1j", "[0.1]", "torch.tensor(1)"],
                  TypeError, " of param_groups[1] = "),
            *each(part + ", CURVE)", ["-0.1", "-1e-300", "INF", "1e-40", "3.5e38", "10**400",
                                      "torch.tensor(NAN)", "torch.tensor(-0.1)"],
                  ValueError, " of param_groups[1] = "),
        )
    ),
    ("TooFew(optimizer_with([0.1, 0.2]), CURVE)", ValueError, "1 learning rates for 2 parameter groups"),
    *(
        row for call in ("lambda_lr({}, CURVE, 6)", "lambda_lr({}, CURVE, 6, hold=PATIENT)")
        for row in each(call, ["adamw", "loaded", "adagrad"], ValueError, "last_epoch = 6, but param_",
                        "lr = 0.01 may be", '.param_groups[0]["initial_lr"] = ', "load_state_dict(state)")
    ),
    *each("count_updates({}, 1)", ["iter([1])", "NoLength()", "3.0", "True", "'9'"],
          TypeError, "loader = ", "has no length: give the number of batches"),
    *each("count_updates({}, 2)", ["0", "-1", "[]"], ValueError, "batches = ", "must be at least 1"),
    *each("count_updates(10, {})", ["0", "-1"], ValueError, "epochs = {} must be at least 1"),
    *each("count_updates(10, {})", NOT_INTEGERS, TypeError, "epochs = {} must be an integer"),
    *each("count_updates(10, 2, accumulation={})", ["0", "-1"], ValueError, "accumulation = {} must be"),
    *each("count_updates(10, 2, accumulation={})", NOT_INTEGERS, TypeError, "accumulation = {}", "integer"),
]  # fmt: skip


@each_row(BUILDING)
def test_wrong_argument_is_rejected(row: Row) -> None:
    optimizers = {
        "adamw": with_decayed_lr(AdamW, loaded=False),
        "loaded": with_decayed_lr(AdamW, loaded=True),
        "adagrad": with_decayed_lr(Adagrad, loaded=False),
    }
    check_error(row, globals(), optimizer=optimizer_with([0.1, 0.1], AdamW), **optimizers)


# What runs: each has made five updates when it is saved, and six when it is called.

RUNS: dict[str, dict[str, Any]] = {
    "scheduler": {},
    "held": {"hold": PATIENT},
    "counted": {"unit": 8, "asked": True},
    "follower": {},
}


OPTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(RUNS, (", strict=True", ", strict=False"))
OPTIONS["follower"] = ("",)
"""The options of `load_state_dict`."""


def run_of(name: str, curve: Any = CURVE, bases: Any = (0.25, 0.7)) -> Driven:
    return Driven("follower" if name == "follower" else "scheduler", curve, bases, **RUNS[name])


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
    state["hold"][0]["state"] |= entries
    return state


def damaged(part: str, name: str, values: list[str], missing: bool = True) -> list[Row]:
    """Return a row for each wrong value of an entry of a state, and for a state without it."""
    states = [f"{part}_state | {{{name!r}: {value}}}" for value in values]
    states += [f"without({part}_state, {name!r})"] * missing
    return [
        (f"{part}.load_state_dict({state}{option})", ValueError, name)
        for state in states
        for option in OPTIONS[part]
    ]


OLD, LONGER = PlateauCurve(64, warmup_steps=5), PlateauCurve(96, warmup_steps=5)
COOLED = OLD.cooldown(20, 10)
RUNNING: list[Row] = [
    *each("scheduler.step({})", ["0.5", "3.0", "True", "'x'", "(3,)", "torch.tensor(3)", "torch.ones(())"],
          TypeError, "epoch = ", "must be an integer", "call step()", "takes a loss only with hold="),
    *each("scheduler.set_peak({})", ["-0.1", "NAN", "1e-40"], ValueError, "peak = "),
    *each("scheduler.set_peak({})", ["'0.1'", "None", "True"], TypeError, "peak = {}"),
    *each("scheduler.set_peak({})", ["[0.1]", "[0.1] * 3", "torch.ones(3)"], ValueError, "peak has ", "2 p"),
    ("scheduler.set_peak([0.1, -1.0])", ValueError, "peak[1] = -1.0"),
    ("scheduler.set_peak([0.1, None])", TypeError, "peak[1] = None"),
    # These had one curve for each group, and got another group.
    *each("{}_of_one.step()", ["scheduler", "follower"], ValueError, "2 parameter groups, but curves for 1"),
    ("held_of_one.step(0.5)", ValueError, "2 parameter groups, but curves for 1 of them"),
    *each("optimizer_of_{}_of_one.step()", list(RUNS), ValueError, "2 parameter groups, but curves for 1"),
    *each("{0}_of_one.load_state_dict({0}_of_one.state_dict())", list(RUNS), ValueError, "but curves for 1"),
    ("scheduler_of_one.set_peak(0.2)", ValueError, "curves for 1", "new.load_state_dict(old.state_dict())"),
    # The states of others.
    *each("torchs.load_state_dict({})", ["held_state", "counted_state"], KeyError, "lr_lambdas"),
    *(
        row for part, other in (("scheduler", "follower"), ("held", "follower"), ("follower", "scheduler"))
        for option in OPTIONS[part] for row in (
            *each(f"{part}.load_state_dict({{}}{option})", ["'a/a.pt'", "b'a.pt'", "Path('a.pt')"],
                  ValueError, "state_dict = ", "is a path", "load the file first, load_state_dict(torch"),
            *each(f"{part}.load_state_dict({{}}{option})",
                  ["None", "{}", "[]", "5", "{'last_epoch': 3}", other + "_state"], ValueError, "state_dict"),
        )
    ),
    # Damaged states.
    *damaged("scheduler", "last_epoch", ["2.5", "None", "-2"]),
    *damaged("scheduler", "_step_count", ["'3'"], missing=False),
    *damaged("scheduler", "base_lrs", ["[None] * 2", "[0.1, -0.1]", "[0.1, NAN]", "[]", "[1] * 3"]),
    *damaged("scheduler", "_last_lr", ["[]", "[0.1]", "[1] * 3", "[0.1, None]", "[0.1, NAN]", "[0.1, -1.0]"]),
    *damaged("held", "clock", ["-1", "6", "1.5", "None"]),
    *damaged("held", "hold", ["None", "[]", "[{'rule': PATIENT.to_dict(), 'state': {}}]"]),
    *damaged("counted", "consumed", ["-1", "2.0", "None", "True", "1", "2**62 + 8"]),
    *damaged("counted", "unit", ["0", "8.0", "'8'", "5"], missing=False),
    *damaged("counted", "clock", ["3", "2.0"]),
    *damaged("follower", "clock", ["-1", "1.5", "None"]),
    *damaged("follower", "key", ["'momentum'", "['weight_decay', 0]", "None"]),
    *damaged("follower", "base_values", ["[]", "[0.5] * 3", "[0.5, None]", "[0.5, -0.5]"]),
    *each("scheduler.load_state_dict(scheduler_state | {})",
          ["{'last_epoch': 7}", "{'base_lrs': None}", "{'base_lrs': [0.1]}", "{'_last_lr': 1}"], ValueError),
    # States of earlier versions, and of schedulers without a peak.
    ("scheduler.load_state_dict(scheduler_state | {'rates': [0.1, 0.1]})", ValueError, "an earlier version",
     "last_epoch=state['clock'] - 1"),
    ("follower.load_state_dict(follower_state | {'new_values': []})", ValueError, "an earlier version",
     "step(state['clock'])"),
    ("scheduler.load_state_dict(CyclicLR(two_groups(), 0.1, 0.5, cycle_momentum=False).state_dict())",
     ValueError, "base_lrs are not the peaks", "last_epoch=-1), and then", "scheduler.set_peak(peak)"),
    ("scheduler.load_state_dict(OneCycleLR(two_groups(), 0.1, 9, cycle_momentum=False).state_dict())",
     ValueError, "OneCycleLR", "base_lrs are not the peaks", "last_epoch=-1"),
    *each("held.load_state_dict(held_state | {{'hold': {}}})", ["5", "[{}]", "[{'rule': PATIENT.to_dict()}]"],
          ValueError, "state_dict"),
    *each("held.load_state_dict(with_rule_state(held_state, {}))",
          ["updates=1.0", "filled=-1", "stale=2**31", "best='0.1'", "total=1", "more=1"], ValueError),
    ("follower.load_state_dict(follower_state | {'base_values': None})", ValueError, "state_dict"),
    # States of 40 updates under another curve; the message shows at most two differences.
    ("resume(OLD, LONGER)", ValueError, "state_dict cannot resume at step 40", " total_steps=64, now 96",
     "learning rates differ from step 6 on; resume with the old curve, or pass strict=False", "lambda_lr if"),
    ("resume(OLD, LONGER, 'follower')", CurveWarning, "the values differ from step 6 on", "at step 40 of"),
    ("resume(OLD, PlateauCurve(9, plateaus=[(0, 50)]))", ValueError, "=64, now 9; warmup_steps=5, now 0; …,"),
    ("resume(COOLED, LONGER.cooldown(20, 10))", ValueError, " curve.total_steps=64, now 96, and the learn"),
    ("resume(COOLED, OLD.then(LONGER).cooldown(9, 9))", ValueError,
     " curve=a PlateauCurve of 64 steps, now a Then of 160 steps; at=20, now 9; …, and the"),
    ("resume(staged(50), staged(50, 38))", ValueError, " stages[38]=[1, 0.62, 'cosine'], now [1, 0.5, 'cos"),
    ("resume(staged(50), staged(38))", ValueError, " stages[38]=[1, 0.62, 'cosine'], now None, and"),
    ("resume(staged(50), LONGER)", ValueError, " a StagedCurve of 50 steps, now a PlateauCurve of 96 steps,"),
    ("resume([OLD, OLD], [OLD, LONGER])", ValueError, "the learning rates of param_groups[1] differ"),
]  # fmt: skip


@each_row(RUNNING)
def test_wrong_step_or_state_is_rejected(row: Row) -> None:
    objects: dict[str, Any] = {"torchs": LambdaLR(optimizer_with([0.5, 0.5]), lambda step: 1.0)}
    for name in RUNS:
        if f"{name}_of_one" in row[0]:
            run = run_of(name, [CURVE], [0.5])
            run.advance(4)
            run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
            objects |= {f"{name}_of_one": run.part, f"optimizer_of_{name}_of_one": run.optimizer}
        elif name in row[0]:
            run = run_of(name)
            run.advance(5)
            objects[f"{name}_state"] = copy.deepcopy(run.part.state_dict())
            run.advance(1)
            objects |= {name: run.part, f"{name}_optimizer": run.optimizer}
    check_error(row, globals(), **objects)


@pytest.mark.parametrize(
    ("name", "error"), [("scheduler", ValueError), ("held", ValueError), ("follower", CurveWarning)]
)
def test_error_about_long_curves_is_short(name: str, error: type[Exception]) -> None:
    """A staircase of 300 stages prints as more than ten thousand characters."""
    old, new = (
        StagedCurve([stage for step in range(300) for stage in ((0, 1 - step / 301), (length,))])
        for length in (7, 8)
    )
    with pytest.raises(error, match="differ from step 7 on") as caught:
        resume(old, new, name)
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("curves", [5, [5] * 2, [{}] * 2, [], [CURVE.to_dict()]], ids=str)
def test_unreadable_curves_are_an_error_only_if_strict(name: str, curves: Any) -> None:
    run = run_of(name)
    run.advance(5)
    saved_clock = run.part.clock
    state = run.part.state_dict() | {"curves": curves}
    run.advance(1)
    options: dict[str, Any] = {}
    if name != "follower":
        run.rejects(ValueError, ".", lambda: run.part.load_state_dict(state))
        options = {"strict": False}
    with pytest.warns(CurveWarning, match="so far are not compared, since the saved curves cannot be read"):
        run.part.load_state_dict(state, **options)
    assert run.part.clock == saved_clock


@pytest.mark.filterwarnings("ignore:the (values|learning rates) so far:plateau_jax.CurveWarning")
@pytest.mark.filterwarnings("ignore:state_dict (belongs|was saved|has the peak):plateau_jax.CurveWarning")
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("strict", [True, False])
@examples(100)
@given(data=st.data())
def test_any_damage_is_rejected_or_harmless(name: str, strict: bool, data: st.DataObject) -> None:
    run = run_of(name)
    run.advance(5)
    holder = damage(data, [copy.deepcopy(run.part.state_dict())])
    run.advance(1)
    before = run.shown()
    options = {} if name == "follower" else {"strict": strict}
    try:
        run.part.load_state_dict(holder[0], **options)
    except ValueError:
        assert run.shown() == before
    else:
        run.advance(1)
        assert np.isfinite(np.array(run.values(), dtype=float)).all()
