"""States of schedulers and followers on a clock of samples: every way to resume, and rejections."""

import copy
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.counted import ROUTES, CountedRun, clocks_of, counts, units
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim.lr_scheduler import LambdaLR

from plateau_jax import HoldBelow, PlateauCurve
from torch_bridge import lambda_lr

pytestmark = [
    # Short curves, far past their ends.
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)

kinds = pytest.mark.parametrize("kind", ["scheduler", "follower"])


@kinds
@examples(100)
@given(
    descriptions(range(4), scaled=True),
    st.none() | units,
    st.booleans(),
    st.lists(st.tuples(counts, st.sampled_from(ROUTES)), max_size=4),
)
def test_resume_matches_uninterrupted_run(
    kind: str, description: Description, unit: int | None, asked: bool, walk: list[tuple[list[int], str]]
) -> None:
    curve = build(description)
    unit = curve.unit or unit
    run = CountedRun(kind, curve, unit, asked and unit is not None)
    consumed = updates = 0
    for given_counts, route in walk:
        for count in given_counts:
            run.update(count)
            updates += 1
            consumed = updates if unit is None else consumed + count
        getattr(run, route)()
        run.check(consumed, updates)
    run.update(5)
    run.check(updates + 1 if unit is None else consumed + 5, updates + 1)


def _rejected(run: CountedRun, state: Any, message: str, **options: Any) -> None:
    before = run.shown()
    with pytest.raises(ValueError, match=message):
        run.part.load_state_dict(state, **options)
    assert run.shown() == before


@kinds
@examples(60)
@given(
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.lists(st.integers(0, 30), max_size=9),
    st.booleans(),
)
def test_state_of_another_unit_needs_strict_false(
    kind: str, saved_unit: int | None, unit: int | None, given_counts: list[int], strict_off: bool
) -> None:
    saved = CountedRun(kind, CURVE, saved_unit)
    for count in given_counts:
        saved.update(count) if saved_unit else advance(saved.optimizer, saved.part)
    run = CountedRun(kind, CURVE, unit, strict=not strict_off)
    advance(run.optimizer, run.part, 2) if unit is None else run.update(20)
    state = through_file(saved.part.state_dict())
    clock, updates = saved.part.clock, len(given_counts)
    if saved_unit != unit:
        _rejected(
            run,
            state,
            rf"was saved with unit = {saved_unit}, but here it is {unit}; to resume from its clock, {clock}, "
            r"pass strict=False to load_state_dict, or to (lambda_lr|follow) if Checkpoints or a trainer "
            r"loads$",
            strict=True,
        )
    run.part.load_state_dict(state, **({} if strict_off else {"strict": saved_unit == unit}))
    if saved_unit == unit:
        consumed = saved.part.consumed
    elif unit is None:
        consumed = updates = clock
    else:
        consumed = clock * unit
    run.check(consumed, updates)
    # The next state has this unit.
    again = CountedRun(kind, CURVE, unit)
    again.part.load_state_dict(through_file(run.part.state_dict()))
    again.check(consumed, updates)


def test_resume_switches_between_hold_and_unit() -> None:
    """A run under a hold continues with a unit, and the reverse, from the saved clock."""
    held = lambda_lr(optimizer_with([0.5]), CURVE, hold=HoldBelow(0.5, 3))
    for _ in range(8):
        held.optimizer.step()
        held.step(0.3)
    counted = lambda_lr(optimizer_with([0.5]), CURVE, unit=8, strict=False)
    with pytest.raises(ValueError, match="saved with"):
        counted.load_state_dict(held.state_dict(), strict=True)
    counted.load_state_dict(through_file(held.state_dict()))
    assert held.clock < 8
    assert (counted.clock, counted.consumed, counted.last_epoch) == (held.clock, held.clock * 8, 8)
    counted.optimizer.step()
    counted.step(count=400)
    for _ in range(2):  # the loaded state is saved and loaded again
        state = through_file(counted.state_dict())
        held = lambda_lr(optimizer_with([0.5]), CURVE, hold=HoldBelow(0.5, 3))
        held.load_state_dict(state, strict=False)
        assert held.clock == counted.clock == held.last_epoch
        again = lambda_lr(optimizer_with([0.5]), CURVE, hold=HoldBelow(0.5, 3))
        again.load_state_dict(through_file(held.state_dict()))
        assert lrs_of(again.optimizer) == lrs_of(held.optimizer) == lrs_of(counted.optimizer)


@pytest.mark.filterwarnings("ignore:at = ")
@kinds
@examples(60)
@given(
    descriptions(range(3)),
    descriptions(range(3)),
    st.integers(1, 20),
    st.lists(st.integers(1, 60), max_size=6),
)
def test_every_step_so_far_is_compared(
    kind: str, description: Description, other: Description, unit: int, given_counts: list[int]
) -> None:
    old = build(description)
    saved = CountedRun(kind, old, unit)
    for count in given_counts:
        saved.update(count)
    state, consumed = through_file(saved.part.state_dict()), sum(given_counts)
    *used, clock = clocks_of(unit, given_counts)
    is_used = consumed % unit > 0 and clock < old.total_steps
    allowed = [old.cooldown(clock, 5)]
    if clock <= old.total_steps < 2**30:
        allowed.append(old.then(CURVE))
    for new in (build(other), *allowed):
        run = CountedRun(kind, new, unit)
        is_near = math.isclose(old(clock), new(clock), rel_tol=2**-22, abs_tol=2**-57)
        if new.same_until(old, clock) and (is_near or not is_used):
            run.part.load_state_dict(state)
            # `then` may begin at another level, at the end of the old curve.
            steps = [step for step in used if step not in (clock, old.total_steps)]
            assert all(old(step) == new(step) for step in steps)
            assert is_near or clock not in used or clock >= old.total_steps
        else:
            assert new not in allowed
            _rejected(run, state, "cannot resume at step .* differ from step")
            run.part.load_state_dict(state, strict=False)
        run.check(consumed, len(given_counts))


@kinds
def test_clock_too_large_for_new_unit_is_rejected(kind: str) -> None:
    saved, run = CountedRun(kind, CURVE, 1), CountedRun(kind, CURVE, 8)
    saved.update(2**60)
    _rejected(run, saved.part.state_dict(), r"more than 2\*\*62", strict=False)


def test_plain_lambda_lr_state_loads_with_unit() -> None:
    optimizer = optimizer_with([0.5])
    plain = LambdaLR(optimizer, lambda step: 1.0)
    advance(optimizer, plain, 7)
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE, unit=8)
    scheduler.load_state_dict(through_file(plain.state_dict()), strict=False)
    assert (scheduler.clock, scheduler.consumed, scheduler.last_epoch) == (7, 56, 7)
    assert lrs_of(scheduler.optimizer) == [0.5 * CURVE(7)]


def test_loaded_scheduler_calls_its_own_function() -> None:
    """The state does not hold the function: a scheduler that loads it calls its own."""
    saved = lambda_lr(optimizer_with([0.5]), CURVE, unit=8, count=lambda: 16)
    advance(saved.optimizer, saved)
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE, unit=8, count=lambda: 80)
    scheduler.load_state_dict(through_file(saved.state_dict()))
    advance(scheduler.optimizer, scheduler)
    assert (scheduler.consumed, scheduler.clock) == (96, 12)


def sixteen() -> int:
    return 16


def test_copies_call_the_same_function() -> None:
    for count in (sixteen, lambda: 16):
        optimizer = optimizer_with([0.5])
        scheduler = lambda_lr(optimizer, CURVE, unit=8, count=count)
        advance(optimizer, scheduler)
        copies = [copy.deepcopy((optimizer, scheduler))]
        if count is sixteen:
            copies.append(pickle.loads(pickle.dumps((optimizer, scheduler))))
        else:
            with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
                pickle.dumps((optimizer, scheduler))
        for other, again in copies:
            advance(other, again)
            assert (again.consumed, scheduler.consumed) == (32, 16)
            assert lrs_of(other) == [0.5 * CURVE(4)]
