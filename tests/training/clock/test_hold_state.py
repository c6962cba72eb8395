"""A held clock in a training step's state: resumes as if uninterrupted; invalid states are rejected."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.held import CURVE, PATIENT, curves, holds, told
from support.holds.hold_cases import metrics
from support.schedulers.runs import learning_rate
from support.training.models import batches
from support.training.steps import check_resume, make_step, train
from support.training.trees import equal_trees

from plateau_jax import Curve, HoldBelow, StagedCurve

# Short curves, and runs past their ends; the warning has separate tests.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

SIZE = 40


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
@examples(10)
@given(curves, holds, metrics(SIZE), st.integers(0, SIZE))
def test_held_run_resumes_from_any_update(
    name: str, curve: Curve, hold: Any, losses: list[Any], at: int
) -> None:
    updates = [torch.tensor(loss) for loss in losses]
    check_resume(
        lambda: make_step(name, loss_fn=told, curve=curve, hold=hold, precision="fp16"), updates, (at,)
    )


_OTHERS: list[Any] = [None, HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_state_of_other_rules_is_rejected(other: Any, swapped: bool, strict: bool) -> None:
    """The message says how to start at the step of the curve, and that works."""
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, step = (make_step(loss_fn=told, curve=CURVE, hold=hold) for hold in (first, second))
    train(saved, [torch.tensor(0.75)] * 5)
    train(step, [torch.tensor(0.75)] * 2)
    state, before = saved.state_dict(), step.state_dict()
    clock = state["clock"]
    message = rf"saved with hold = .*, but here it is .* step {clock} of .*load state_dict \| (.*)$"
    with pytest.raises(ValueError, match=message) as error:
        step.load_state_dict(state, strict=strict)
    assert equal_trees(step.state_dict(), before)
    advice = re.search(message, str(error.value))
    step.load_state_dict(state | eval(advice[1] if advice else "", {"step": step}))
    assert equal_trees(step.state_dict()["model"], state["model"])
    result = step(torch.tensor(0.75))
    assert result.clock == clock
    assert result.lr.tolist() == [learning_rate(0.01, CURVE, clock)]


def test_state_without_rules_loads() -> None:
    data = batches(20)
    saved, uninterrupted = make_step(curve=CURVE), make_step(curve=CURVE)
    train(saved, data[:8])
    results = train(uninterrupted, data)
    state: Any = saved.state_dict()
    step, held = make_step(curve=CURVE), make_step(curve=CURVE, hold=PATIENT)
    step.load_state_dict(state)
    assert equal_trees(train(step, data[8:]), results[8:])
    with pytest.raises(ValueError, match="saved with hold = None"):
        held.load_state_dict(state, strict=False)
    for name in ("applied", "clock", "hold", "model", "parameters"):
        with pytest.raises(ValueError, match="not the state of a TrainStep"):
            step.load_state_dict({key: value for key, value in state.items() if key != name})


def test_other_curve_must_agree_up_to_the_clock() -> None:
    """A held run made more updates than its clock counts, so a branch between has the same history."""
    saved = make_step(loss_fn=told, curve=CURVE, hold=PATIENT)
    train(saved, [torch.tensor(0.75)] * 6)
    state = saved.state_dict()
    assert (state["clock"], state["applied"]) == (3, 6)
    branch = CURVE.cooldown(4, 5)
    assert not branch.same_until(CURVE, 6)
    step = make_step(loss_fn=told, curve=branch, hold=PATIENT)
    step.load_state_dict(state)
    clocks = [int(result.clock) for result in train(step, [torch.tensor(0.75)] * 6)]
    assert clocks == [3, 4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="differ from step"):
        make_step(loss_fn=told, curve=StagedCurve([(2, 0.5), (20,)]), hold=PATIENT).load_state_dict(state)
    other = StagedCurve([(3, 1.0), (0, 0.5), (9,)], start=0.1)
    jump = make_step(loss_fn=told, curve=other, hold=PATIENT)
    with pytest.raises(ValueError, match="differ from step 3 on"):  # held updates have run at step 3
        jump.load_state_dict(state)


@pytest.mark.parametrize("name", ["adamw", "plain adam"])
def test_interrupted_decision_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, uninterrupted = (make_step(name, curve=CURVE, hold=PATIENT) for _ in range(2))
    data = batches(8)
    train(step, data[:5])
    train(uninterrupted, data[:5])
    state = step.state_dict()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step._clock._hold, "decide_hold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(data[5])
    with pytest.raises(RuntimeError, match="an update was interrupted"):
        step(data[5])
    step.load_state_dict(state)
    assert equal_trees(train(step, data[5:]), train(uninterrupted, data[5:]))
