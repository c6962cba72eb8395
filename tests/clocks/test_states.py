"""States of a different clock or history are rejected, or continue with a warning.

All parts of the product resume by the same function: most tests call it through the simplest one.
"""

from itertools import accumulate

import pytest
from clocks.numpy_run import NumPyRun
from clocks.step_run import StepRun
from hypothesis import given, strategies as st
from support.clocks.holds import THREE_PLATEAUS
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.raises import raises
from support.runs.scheduler_run import SchedulerRun
from support.schedulers.runs import learning_rate
from support.trees import assert_equal_trees

from plateau_jax import CurveWarning, DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


PATIENT = HoldUntilFlat(3, limit=9)
BELOW = HoldBelow(0.5, 3)
CLOCKS = [
    None,
    DataClock(1),
    DataClock(3),
    DataClock(64),
    PATIENT,
    HoldUntilFlat(4, limit=9),
    BELOW,
    [PATIENT, BELOW],
    [BELOW, PATIENT],
]
counts = st.lists(st.integers(0, 30), max_size=7)


def check_rejected(run, state, *parts):
    with raises(ValueError, *parts, match="^state_dict ", unchanged=[run]):
        run.load(state)


@pytest.mark.parametrize("run_class", [SchedulerRun, StepRun, NumPyRun])
@examples(80)
@given(st.sampled_from(CLOCKS), st.sampled_from(CLOCKS), counts)
def test_state_of_another_clock_continues_if_not_strict(
    run_class, saved_clock, clock, drawn_counts
):
    """The run continues at the saved step of the curve, like a new run that has come there."""
    saved = run_class(THREE_PLATEAUS, [0.25], saved_clock)
    saved.run([(count, 0.75) for count in drawn_counts])
    step = saved.curve_step()
    state = saved.save()
    run = run_class(THREE_PLATEAUS, [0.25], clock)
    run.run([(70, 0.75)])
    if clock == saved_clock:
        run.load(state)
        assert_equal_trees(run.save(), state)
        return
    check_rejected(run, state, "saved with")
    with pytest.warns(CurveWarning, match="saved with"):
        run.load(state, strict=False)
    assert run.curve_step() == step
    resumed = run_class(THREE_PLATEAUS, [0.25], clock)
    resumed.load(run.save())

    # The learning rates of two updates, of which a rule may hold the second.
    count = 1
    first_lr = learning_rate(0.25, THREE_PLATEAUS, step)
    second_lr = learning_rate(0.25, THREE_PLATEAUS, step + 1)
    lrs = [[first_lr], [second_lr]]
    if isinstance(clock, DataClock):
        assert run.consumed() == step * clock.unit
        count = clock.unit
    elif clock is not None:
        del lrs[1]
    updates = [(count, 0.75), (count, 0.75)]
    assert run.run(updates)[: len(lrs)] == lrs
    assert resumed.run(updates)[: len(lrs)] == lrs
    assert_equal_trees(run.save(), resumed.save())


def test_data_clock_resumes_with_another_count():
    saved = NumPyRun(THREE_PLATEAUS, [0.25], DataClock(8, count=20))
    saved.run([(20, 0.5)] * 3)
    run = NumPyRun(THREE_PLATEAUS, [0.25], DataClock(8, count=7))
    run.load(saved.save())
    assert run.consumed() == 60
    assert run.curve_step() == 7


@pytest.mark.filterwarnings("ignore:at = ")
@examples(40)
@given(descriptions(range(3)), descriptions(range(3)), st.none() | st.integers(1, 20), counts)
def test_every_step_so_far_is_compared(description, other, unit, drawn_counts):
    """The present step is too, if its unit is partly consumed, or updates have not left step 0."""
    old = build(description)
    if unit is None:
        clock = None
        curve_steps = list(range(len(drawn_counts) + 1))
        is_step_used = False
    else:
        clock = DataClock(unit)
        consumed = list(accumulate(drawn_counts, initial=0))
        curve_steps = [samples // unit for samples in consumed]
        has_stayed_at_0 = len(drawn_counts) > 0 and curve_steps[-1] == 0
        is_step_used = consumed[-1] % unit > 0 or has_stayed_at_0
    *used_steps, step = curve_steps
    saved = NumPyRun(old, [0.25], clock)
    saved.run([(count, 0.5) for count in drawn_counts])
    state = saved.save()

    allowed = [old.cooldown(step, 5)]
    if step <= old.total_steps < 2**30:
        allowed.append(old.then(PlateauCurve(100, warmup_steps=10)))
    for new in (build(other), *allowed):
        run = NumPyRun(new, [0.25], clock)
        is_same = new.same_until(old, step)
        if is_step_used and step < old.total_steps:
            is_same = is_same and new(step) == old(step)
        if is_same:
            run.load(state)
            for used_step in used_steps:
                # `then` may begin at another level, at the end of the old curve.
                if used_step not in (step, old.total_steps):
                    assert old(used_step) == new(used_step)
            if is_step_used and step < old.total_steps:
                assert new(step) == old(step)
        else:
            assert new not in allowed
            cannot_resume = f"cannot resume at step {step}: "
            differ = f"differ from step {new.first_difference(old)} on"
            check_rejected(run, state, cannot_resume, differ)
            with pytest.warns(CurveWarning, match="state_dict has a different curve"):
                run.load(state, strict=False)
        run.restart()
        assert run.curve_step() == step
        assert run.update(1, 0.5) == [learning_rate(0.25, new, step)]


ENDLESS = HoldUntilFlat(30, limit=1000)
THREE_STEPS = StagedCurve([(3, 1.0), (40,)])


@pytest.mark.parametrize(
    ("curve", "updates", "rejected_from"),
    [
        # A held run made more updates than steps of the curve: a branch between the two is allowed.
        (StagedCurve([(3, 1.0), (2,), (4, 0.0)]), 20, None),
        (StagedCurve([(2, 1.0), (40,)]), 20, 1),
        # Held updates have used step 3.
        (StagedCurve([(3, 1.0), (0, 0.5), (40,)]), 20, 3),
        (StagedCurve([(3, 1.0), (0, 0.5), (40,)]), 3, None),
    ],
)
def test_held_run_is_compared_up_to_its_step(curve, updates, rejected_from):
    saved = NumPyRun(THREE_STEPS, [0.25], ENDLESS)
    saved.run([(1, 0.5)] * updates)
    state = saved.save()
    run = NumPyRun(curve, [0.25], ENDLESS)
    if rejected_from is None:
        run.load(state)
        assert run.update(1, 0.5) == [learning_rate(0.25, curve, 3)]
        assert run.curve_step() == 3
    else:
        check_rejected(run, state, f"differ from step {rejected_from} on")


@pytest.mark.parametrize(
    ("last_epoch", "curve_steps"),
    [
        (2, [3, 3, 3, 3, 4]),
        (3, [4, 5, 6, 7, 8]),
    ],
)
def test_last_epoch_sets_step_and_starts_rules(last_epoch, curve_steps):
    """The curve is held at step 3, not after it."""
    run = SchedulerRun(THREE_PLATEAUS, [0.25], PATIENT, last_epoch=last_epoch)
    for curve_step in curve_steps:
        assert run.curve_step() == curve_step
        run.update()


@pytest.mark.parametrize("clock", [None, BELOW, DataClock(3)])
def test_training_step_counts_all_updates_after_a_change_of_clock(clock):
    by_data = StepRun(THREE_PLATEAUS, [0.25], DataClock(8))
    by_data.run([(2, 0.75)] * 12)
    run = StepRun(THREE_PLATEAUS, [0.25], clock)
    with pytest.warns(CurveWarning, match="a different clock"):
        run.load(by_data.save(), strict=False)
    assert run.counters()[0] == 12
    assert run.curve_step() == 3


def test_step_used_after_a_change_of_clock_is_compared():
    """The updates of such a `TrainStep` no longer give its step of the curve."""
    flat = StagedCurve([(20, 1.0), (40,)])
    jumps = StagedCurve([(20, 1.0), (0, 0.5), (40,)])
    by_data = StepRun(flat, [0.25], DataClock(8))
    by_data.run([(80, 0.5)] * 2)
    held = StepRun(flat, [0.25], HoldBelow(1e9, 50))
    with pytest.warns(CurveWarning, match="a different clock"):
        held.load(by_data.save(), strict=False)
    held.run([(1, 0.5)] * 5)
    run = StepRun(jumps, [0.25], HoldBelow(1e9, 50))
    check_rejected(run, held.save(), "differ from step 20 on")
    # Without a rule, no update has used the step at which the run continues.
    plain = StepRun(flat, [0.25])
    with pytest.warns(CurveWarning, match="a different clock"):
        plain.load(by_data.save(), strict=False)
    StepRun(jumps, [0.25]).load(plain.save())
