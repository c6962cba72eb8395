"""Schedulers and followers on a clock of samples: large sums, wrong counts, states, torch's schedulers."""

import copy
import math
import pickle
import random
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.scaled import PLAN, exact_levels, scaled
from support.examples import examples
from support.numerics.oracle import Description, is_nearest_float32
from support.schedulers.driven import ROUTES, Driven
from support.schedulers.runs import advance, optimizer_with
from support.training.trees import through_file

from plateau_jax import HoldBelow, PlateauCurve
from torch_bridge import lambda_lr

# Short curves, far past their ends.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)

kinds = pytest.mark.parametrize("kind", ["scheduler", "follower"])


@kinds
@pytest.mark.parametrize("route", ROUTES)
@examples(3)
@given(st.sampled_from([0.5, 1.0, 0.3]))
def test_scaled_curve_follows_its_plan(kind: str, route: str, exponent: float) -> None:
    """The run resumes with each batch of the plan."""
    run = Driven(kind, scaled(exponent), unit=8)
    for update, (consumed, level) in enumerate(exact_levels(exponent)):
        assert run.consumed == consumed
        run.check()
        assert is_nearest_float32(np.float32(4 * run.values()[0]), level)  # its base is 1/4
        run.update(PLAN(consumed))
        if update % 8 == 5:
            getattr(run, route)()


@kinds
@pytest.mark.parametrize(("unit", "most"), [(256, 512), (65_536, 4_000_000)])
def test_values_follow_many_random_counts(kind: str, unit: int, most: int) -> None:
    draw = random.Random(unit)
    given_counts = [draw.randint(0, most) for _ in range(20_000)]
    clocks = [consumed // unit for consumed in accumulate(given_counts, initial=0)]
    curve = PlateauCurve(clocks[-1] * 9 // 10 + 1, warmup_steps=clocks[-1] // 20, plateaus=[(40, 30)])
    run = Driven(kind, curve, unit=unit)
    values: list[tuple[int, float]] = []
    run.optimizer.step()
    for count in given_counts:
        values.append((run.part.clock, run.values()[0]))
        run.part.step(count=count)
    assert values == list(zip(clocks, (0.25 * curve(np.array(clocks[:-1]))).tolist(), strict=False))
    assert run.part.consumed == sum(given_counts)


@kinds
def test_sum_is_exact_up_to_2_to_the_62(kind: str) -> None:
    run = Driven(kind, CURVE, unit=2**61 // 30 + 1)
    for count in [2**58 - 1] * 2**4 + [16]:
        run.check()
        run.update(count)
    assert run.consumed == 2**62
    message = rf"count = 1 after consumed = {2**62} is more than 2\*\*62 in all"
    run.rejects(ValueError, message, lambda: run.part.step(count=1))
    run.by_file()
    run.check()


_WRONG_COUNTS: list[tuple[Any, type[Exception]]] = [
    *((count, ValueError) for count in (-1, torch.tensor(-2), 2**62 + 1)),
    *((count, TypeError) for count in (True, np.True_, 2.0, np.float32(2), "2", [2])),
    *((count, TypeError) for count in (torch.tensor(True), torch.tensor(2.0), torch.tensor([2, 2]))),
]


@kinds
@pytest.mark.parametrize(("count", "error"), _WRONG_COUNTS, ids=repr)
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("updates", [0, 3])
def test_wrong_count_changes_nothing(
    kind: str, count: Any, error: type[Exception], asked: bool, updates: int
) -> None:
    run = Driven(kind, CURVE, unit=8, asked=asked)
    run.advance(updates)
    run.rejects(error, r"^count\(\) = " if asked else "^count = ", lambda: run.step(count))
    run.update(20)
    run.check()


@kinds
def test_step_without_count_names_both_remedies(kind: str) -> None:
    run = Driven(kind, CURVE, unit=8)
    run.update(20)
    run.rejects(
        TypeError, r"with unit = 8, .*step\(count=n\).*pass count=, a function", lambda: run.part.step()
    )
    asked = Driven(kind, CURVE, unit=8, asked=True)
    asked.optimizer.step()
    asked.part.step(count=np.uint8(200))  # in place of the function
    assert asked.part.consumed == 200


@pytest.mark.parametrize("kind", ["scheduler", "follower", "held"])
def test_wrong_argument_of_step_changes_nothing(kind: str) -> None:
    """A count needs a unit and is passed by keyword, a metric needs a hold, and an epoch has neither."""
    hold = HoldBelow(0, 1) if kind == "held" else None
    plain = Driven("follower" if kind == "follower" else "scheduler", CURVE, hold=hold)
    plain.rejects(
        TypeError, r"step\(count=8\), but the curve counts updates.*unit=n", lambda: plain.part.step(count=8)
    )
    if kind == "held":
        return
    counted = Driven(kind, CURVE, unit=8)
    if kind == "follower":
        counted.rejects(TypeError, "positional", lambda: counted.part.step(8))
        return
    plain.rejects(TypeError, r"step\(count=8\), but", lambda: plain.part.step(3, count=8))
    for run in (plain, counted):
        message = r"step\(metric=0.5\) needs lambda_lr\(\.\.\., hold=\.\.\.\)"
        run.rejects(TypeError, message, lambda run=run: run.part.step(metric=0.5))
    for epoch, options in ((0, {}), (1, {}), (8, {"count": 8})):
        message = rf"step\({epoch}\) with unit = 8: write step\(count=n\)"
        counted.rejects(
            TypeError, message, lambda epoch=epoch, options=options: counted.part.step(epoch, **options)
        )


@kinds
@pytest.mark.parametrize("strict", [False, True])
@examples(60)
@given(st.none() | st.integers(1, 9), st.none() | st.integers(1, 9), st.lists(st.integers(0, 30), max_size=9))
def test_state_of_another_unit_is_rejected(
    kind: str, strict: bool, saved_unit: int | None, unit: int | None, given_counts: list[int]
) -> None:
    """The message says how to start at the step of the curve, and that works."""
    saved, run = Driven(kind, CURVE, unit=saved_unit), Driven(kind, CURVE, unit=unit, strict=strict)
    for count in given_counts:
        saved.update(count)
    clock, state = saved.clock(), saved.saved()[1]
    if unit == saved_unit:
        run.part.load_state_dict(state)
        assert run.part.state_dict() == state
        return
    advice = f"build it with last_epoch={clock - 1}"
    if unit is not None:
        advice = rf"call step\(count={clock * unit}\) once"
    elif kind == "follower":
        advice = rf"call step\(\) {clock} times"
    message = rf"with unit = {saved_unit}, but here it is {unit}\. .* from step {clock} of the curve, "
    message += f"do not load this state: {advice}$"
    run.rejects(ValueError, message, lambda: run.part.load_state_dict(state))
    if unit is not None:
        run.part.step(count=clock * unit)
    elif kind == "scheduler":
        run.start(last_epoch=clock - 1)
    else:
        for _ in range(clock):
            run.part.step()
    assert run.values() == saved.values()


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
    saved = Driven(kind, old, unit=unit)
    for count in given_counts:
        saved.update(count)
    state = saved.saved()[1]
    *used, clock = (consumed // unit for consumed in accumulate(given_counts, initial=0))
    is_used = saved.consumed % unit > 0 and clock < old.total_steps
    allowed = [old.cooldown(clock, 5)]
    if clock <= old.total_steps < 2**30:
        allowed.append(old.then(CURVE))
    for new in (build(other), *allowed):
        run = Driven(kind, new, unit=unit)
        is_near = math.isclose(old(clock), new(clock), rel_tol=2**-22, abs_tol=2**-57)
        if new.same_until(old, clock) and (is_near or not is_used):
            run.part.load_state_dict(state)
            # `then` may begin at another level, at the end of the old curve.
            steps = [step for step in used if step not in (clock, old.total_steps)]
            assert all(old(step) == new(step) for step in steps)
            assert is_near or clock not in used or clock >= old.total_steps
        else:
            assert new not in allowed
            message = "cannot resume at step .* differ from step"
            run.rejects(ValueError, message, lambda run=run: run.part.load_state_dict(state))
            run.part.load_state_dict(state, strict=False)
        run.updates, run.consumed = saved.updates, saved.consumed
        run.check()


def test_loaded_scheduler_calls_its_own_function() -> None:
    """The state does not hold the function: a scheduler that loads it calls its own."""
    saved = lambda_lr(optimizer_with([0.5]), CURVE, unit=8, count=lambda: 16)
    advance(saved.optimizer, saved)
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE, unit=8, count=lambda: 80)
    scheduler.load_state_dict(through_file(saved.state_dict()))
    advance(scheduler.optimizer, scheduler)
    assert (scheduler.consumed, scheduler.clock) == (96, 12)


def test_copies_call_the_same_function() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE, unit=8, count=lambda: 16)
    other, again = copy.deepcopy((optimizer, scheduler))
    advance(other, again)
    assert (again.consumed, scheduler.consumed) == (16, 0)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps((optimizer, scheduler))
