"""The state of a scheduler with a held clock: resumed as if never stopped, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.held import CURVE, PATIENT, HeldRun, clocks_of, curves, holds
from support.hold_cases import metrics
from support.runs import optimizer_with, through_a_file

from plateau_jax import Curve, HoldBelow, HoldUntilFlat, StagedCurve
from torch_bridge import lambda_lr

# Short curves, far past their ends.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

SIZE = 40


# torch warns of a copy made before the first step.
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")
@examples(150)
@given(
    curves,
    holds,
    metrics(SIZE),
    st.dictionaries(
        st.integers(0, SIZE),
        st.sampled_from([name for name in vars(HeldRun) if name.startswith(("by_", "into_"))]),
        max_size=4,
    ),
)
def test_resumed_is_as_if_it_had_never_stopped(
    curve: Curve, hold: Any, given_metrics: list[Any], stops: dict[int, str]
) -> None:
    run = HeldRun(curve, hold)
    expected = clocks_of(hold, curve, given_metrics)
    for updates, (clock, metric) in enumerate(zip(expected, given_metrics, strict=False)):
        if updates in stops:
            getattr(run, stops[updates])()
        run.check(clock, updates)
        run.update(metric)
    run.check(expected[-1], SIZE)


_OTHERS: list[Any] = [None, HoldUntilFlat(4, limit=9), HoldBelow(0.5, 3), [PATIENT, HoldBelow(0.5, 3)]]


@pytest.mark.parametrize("other", _OTHERS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@given(updates=st.integers(0, 20))
def test_the_state_of_other_rules(other: Any, swapped: bool, updates: int) -> None:
    """It is refused; with strict=False the run goes on from the clock, and the rules start anew."""
    first, second = (other, PATIENT) if swapped else (PATIENT, other)
    saved, run = HeldRun(CURVE, first), HeldRun(CURVE, second)
    for _ in range(updates):
        saved.update(None if first is None else 0.5)
    state, before = through_a_file(saved.scheduler.state_dict()), run.scheduler.state_dict()
    with pytest.raises(ValueError, match=r"saved with hold = .*, but here it is .* pass strict=False"):
        run.scheduler.load_state_dict(state)
    assert run.scheduler.state_dict() == before
    run.scheduler.load_state_dict(state, strict=False)
    clock = saved.scheduler.clock
    run.check(clock, clock if second is None else updates)
    fresh = lambda_lr(optimizer_with([0.1, 0.7]), CURVE, clock - 1, hold=second)
    for _ in range(12):
        assert run.scheduler.state_dict()["hold"] == fresh.state_dict()["hold"]
        assert run.scheduler.clock == fresh.clock
        for scheduler in (run.scheduler, fresh):
            scheduler.optimizer.step()
            scheduler.step(None if second is None else 0.5)


LONG = StagedCurve([(3, 1.0), (40,), (10, 0.0)])


@pytest.mark.parametrize("hold", [PATIENT, None], ids=["held", "let go"])
def test_another_plan_is_asked_for_its_past_up_to_the_clock(hold: Any) -> None:
    """Not up to the number of updates, which a hold makes greater than the clock."""
    saved = HeldRun(LONG, HoldUntilFlat(30, limit=1000))
    for _ in range(20):
        saved.update(0.5)
    assert (saved.scheduler.clock, saved.scheduler.last_epoch) == (3, 20)
    state = through_a_file(saved.scheduler.state_dict())
    branch = LONG.cooldown(5, 4) if hold is None else StagedCurve([(3, 1.0), (2,), (4, 0.0)])
    run = HeldRun(branch, HoldUntilFlat(30, limit=1000))
    run.scheduler.load_state_dict(state)
    for updates in range(20, 30):
        run.check(3, updates)
        run.update(0.5)
    other = HeldRun(StagedCurve([(2, 1.0), (40,)]), HoldUntilFlat(30, limit=1000))
    with pytest.raises(ValueError, match="the curves differ from step"):
        other.scheduler.load_state_dict(state)
    let_go = HeldRun(branch, hold)
    let_go.scheduler.load_state_dict(state, strict=False)
    let_go.check(3, 20 if hold else 3)
