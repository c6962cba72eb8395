"""States of another clock, or of another past, are rejected; the message says how to continue anyway."""

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from support.clocks.drivers import Scheduler, Step
from support.clocks.held import CURVE, PATIENT
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.driven import Driven
from support.schedulers.runs import learning_rate
from support.training.trees import equal_trees

from plateau_jax import CurveWarning, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve
from torch_bridge.training.clock import clock

pytestmark = [
    pytest.mark.usefixtures("short_windows", "small_tables"),
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]


@pytest.fixture(scope="module")
def small_tables() -> Iterator[None]:
    """Training steps compute the learning rates of long curves, which takes less time than their tables."""
    with patch.object(clock, "MAX_TABLE_VALUES", 2**12):
        yield


drivers = pytest.mark.parametrize("driver", [Scheduler, Step])

BELOW = HoldBelow(0.5, 3)
CLOCKS: list[dict[str, Any]] = [
    {},
    *({"unit": unit} for unit in (1, 3, 64)),
    *({"hold": hold} for hold in (PATIENT, HoldUntilFlat(4, limit=9), BELOW, [PATIENT, BELOW])),
]
counts = st.lists(st.integers(0, 30), max_size=7)


def rejected(run: Any, state: Any, **options: Any) -> str:
    """Check that the run rejects the state and does not change; return the message."""
    before = run.save()
    with pytest.raises(ValueError, match=r"^state_dict ") as caught:
        run.load(state, **options)
    assert equal_trees(run.save(), before)
    return str(caught.value)


@drivers
@examples(80)
@given(data=st.data(), strict=st.booleans(), given_counts=counts)
def test_state_of_another_clock_is_rejected(
    driver: Any, data: st.DataObject, strict: bool, given_counts: list[int]
) -> None:
    """The message says how to start at the step of the curve, and that works."""
    clocks = st.sampled_from(CLOCKS)
    saved_clock, clock = data.draw(clocks), data.draw(clocks)
    saved, run = driver(CURVE, 0.25, **saved_clock), driver(CURVE, 0.25, **clock)
    saved.run([(count, 0.75) for count in given_counts])
    run.run([(70, 0.75)])
    step, state = saved.clock(), saved.save()
    if clock == saved_clock:
        run.load(state, strict=strict)
        assert equal_trees(run.save(), state)
        return
    message = rejected(run, state, strict=strict)
    changed = "unit" if saved_clock.get("unit") != clock.get("unit") else "hold"
    before, now = (
        "[{" if "hold" in given and changed == "hold" else str(given.get(changed))
        for given in (saved_clock, clock)
    )
    assert message.startswith(f"state_dict was saved with {changed} = {before}")
    assert f", but here it is {now}" in message
    assert f"continue from step {step} of the curve" in message
    run.start()
    run.start_again(message, state)
    assert run.clock() == step
    assert run.update(1, 0.75) == learning_rate(0.25, CURVE, step)


@pytest.mark.filterwarnings("ignore:at = ")
@drivers
@examples(40)
@given(descriptions(range(3)), descriptions(range(3)), st.none() | st.integers(1, 20), counts)
def test_every_step_so_far_is_compared(
    driver: Any, description: Any, other: Any, unit: int | None, given_counts: list[int]
) -> None:
    """At a partly consumed unit, the step of the clock is compared too; levels may be nearly equal there."""
    old = build(description)
    saved = driver(old, 0.25, unit=unit)
    saved.run([(count, 0.5) for count in given_counts])
    state = saved.save()
    consumed = [*accumulate(given_counts, initial=0)] if unit else range(len(given_counts) + 1)
    *used, clock = (number // (unit or 1) for number in consumed)
    is_used = consumed[-1] % (unit or 1) > 0 and clock < old.total_steps
    allowed = [old.cooldown(clock, 5)]
    if clock <= old.total_steps < 2**30:
        allowed.append(old.then(PlateauCurve(100, warmup_steps=10)))
    for new in (build(other), *allowed):
        run = driver(new, 0.25, unit=unit)
        is_near = math.isclose(old(clock), new(clock), rel_tol=2**-22, abs_tol=2**-57)
        if new.same_until(old, clock) and (is_near or not is_used):
            run.load(state)
            # `then` may begin at another level, at the end of the old curve.
            assert all(old(step) == new(step) for step in used if step not in (clock, old.total_steps))
            assert is_near or clock not in used or clock >= old.total_steps
        else:
            assert new not in allowed
            message = rejected(run, state)
            assert f"cannot resume at step {clock}: " in message
            assert f"differ from step {new.first_difference(old)} on" in message
            with pytest.warns(CurveWarning, match="state_dict belongs to a different curve"):
                run.load(state, strict=False)
        state_under_new = run.save()
        run.start()
        run.load(state_under_new)
        assert (run.clock(), run.update(1, 0.5)) == (clock, learning_rate(0.25, new, clock))


@drivers
def test_next_phase_may_begin_at_another_level(driver: Any) -> None:
    """Even if updates have used the step at the end of the saved curve."""
    old = StagedCurve([(3, 1.0)])
    new = old.then(StagedCurve([(4, 0.5)], start=0.25))
    saved, run = (driver(curve, 0.25, unit=2) for curve in (old, new))
    saved.run([(7, 0.5)])
    run.load(saved.save())
    assert run.update(1, 0.5) == learning_rate(0.25, new, 3) != learning_rate(0.25, old, 3)


ENDLESS = HoldUntilFlat(30, limit=1000)
THREE_STEPS = StagedCurve([(3, 1.0), (40,)])


@pytest.mark.parametrize("driver", [Scheduler, Step])
@pytest.mark.parametrize(
    ("curve", "updates", "rejected_from"),
    [
        # A held run made more updates than its clock counts, so a branch between the two has the same past.
        (StagedCurve([(3, 1.0), (2,), (4, 0.0)]), 20, None),
        (StagedCurve([(2, 1.0), (40,)]), 20, 1),
        # Held updates have used step 3.
        (StagedCurve([(3, 1.0), (0, 0.5), (40,)]), 20, 3),
        (StagedCurve([(3, 1.0), (0, 0.5), (40,)]), 3, None),
    ],
)
def test_held_run_is_compared_up_to_its_clock(
    driver: Any, curve: Any, updates: int, rejected_from: int | None
) -> None:
    saved, run = (driver(given, 0.25, hold=ENDLESS) for given in (THREE_STEPS, curve))
    saved.run([(1, 0.5)] * updates)
    state = saved.save()
    if rejected_from is None:
        run.load(state)
        assert [run.update(1, 0.5), run.clock()] == [learning_rate(0.25, curve, 3), 3]
    else:
        assert f"differ from step {rejected_from} on" in rejected(run, state)


@pytest.mark.parametrize(("last_epoch", "clocks"), [(2, [3, 3, 3, 3, 4]), (3, [4, 5, 6, 7, 8])])
def test_last_epoch_sets_clock_and_starts_rules(last_epoch: int, clocks: list[int]) -> None:
    """The clock is held at step 3, not after it."""
    run = Driven("scheduler", CURVE, hold=PATIENT, last_epoch=last_epoch)
    for wanted in clocks:
        assert run.part.clock == wanted
        run.optimizer.step()
        run.step(metric=0.5)
