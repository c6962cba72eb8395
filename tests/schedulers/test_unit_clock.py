"""Schedulers and followers on a clock of samples: values, counts and warnings."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.scaled import PLAN, exact_levels, scaled
from support.examples import examples
from support.numerics.oracle import Description, is_nearest_float32
from support.schedulers.counted import ROUTES, CountedRun, clocks_of, counts, units
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim import lr_scheduler

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

# Short curves, far past their ends.
pytestmark = pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)

kinds = pytest.mark.parametrize("kind", ["scheduler", "follower"])
_FORMS: dict[str, Any] = {
    "int": int,
    "numpy": np.int64,
    "array": np.array,
    "tensor": torch.tensor,
}


@kinds
@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@examples(60)
@given(descriptions(range(4), scaled=True), units, counts, st.booleans())
def test_values_follow_the_clock(
    kind: str, form: Any, description: Description, unit: int, given_counts: list[int], asked: bool
) -> None:
    curve = build(description)
    unit = curve.unit or unit
    run = CountedRun(kind, curve, unit, asked)
    for updates, (count, clock) in enumerate(zip(given_counts, clocks_of(unit, given_counts), strict=False)):
        assert run.part.clock == clock
        run.check(sum(given_counts[:updates]), updates)
        run.update(form(count))
    run.check(sum(given_counts), len(given_counts))


@kinds
@pytest.mark.parametrize("route", ROUTES)
@examples(3)
@given(st.sampled_from([0.5, 1.0, 0.3]))
def test_scaled_curve_follows_its_plan(kind: str, route: str, exponent: float) -> None:
    """The run resumes with each batch of the plan."""
    run = CountedRun(kind, scaled(exponent), 8)
    for update, (consumed, level) in enumerate(exact_levels(exponent)):
        run.check(consumed, update)
        assert is_nearest_float32(np.float32(4 * run.values()[0]), level)  # its base is 1/4
        run.update(PLAN(consumed))
        if update % 8 == 5:
            getattr(run, route)()


@kinds
@pytest.mark.parametrize(("unit", "most"), [(256, 512), (65_536, 4_000_000)])
def test_values_follow_many_random_counts(kind: str, unit: int, most: int) -> None:
    draw = random.Random(unit)
    given_counts = [draw.randint(0, most) for _ in range(20_000)]
    clocks = clocks_of(unit, given_counts)
    curve = PlateauCurve(clocks[-1] * 9 // 10 + 1, warmup_steps=clocks[-1] // 20, plateaus=[(40, 30)])
    run = CountedRun(kind, curve, unit)
    values: list[tuple[int, float]] = []
    run.optimizer.step()
    for count in given_counts:
        values.append((run.part.clock, run.values()[0]))
        run.part.step(count=count)
    assert values == list(zip(clocks, (0.25 * curve(np.array(clocks[:-1]))).tolist(), strict=False))
    assert run.part.consumed == sum(given_counts)


@pytest.mark.filterwarnings("ignore:the curve stayed at step 0:plateau_jax.CurveWarning")  # counts of 0
@kinds
@examples(60)
@given(units, counts, st.randoms(use_true_random=False))
def test_splitting_counts_changes_nothing(kind: str, unit: int, given_counts: list[int], draw: Any) -> None:
    curve = PlateauCurve(2**31 - 1, warmup_steps=1000, decay_shape="linear")
    whole, cut = (CountedRun(kind, curve, unit) for _ in range(2))
    for count in given_counts:
        whole.update(count)
        borders = sorted(draw.randint(0, count) for _ in range(3))
        for low, high in zip([0, *borders], [*borders, count], strict=True):
            cut.update(high - low)
        assert (cut.part.consumed, cut.part.clock) == (whole.part.consumed, whole.part.clock)
        assert cut.values() == whole.values()


@kinds
def test_sum_is_exact_up_to_2_to_the_62(kind: str) -> None:
    run = CountedRun(kind, CURVE, 2**61 // 30 + 1)
    for updates in range(2**4):
        run.check(updates * (2**58 - 1), updates)
        run.update(2**58 - 1)
    run.update(16)
    run.check(2**62, 17)
    before = run.shown()
    with pytest.raises(ValueError, match=rf"count = 1 after consumed = {2**62} is more than 2\*\*62 in all"):
        run.part.step(count=1)
    assert run.shown() == before
    run.by_file()
    run.check(2**62, 17)


@kinds
def test_without_unit_an_update_is_a_step(kind: str) -> None:
    run = CountedRun(kind, CURVE, None)
    for updates in range(3):
        run.check(updates, updates)
        run.optimizer.step()
        run.part.step()
    assert run.part.state_dict()["consumed"] == 3
    assert run.part.state_dict()["unit"] is None


_WRONG_COUNTS: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError),
    (True, TypeError),
    (np.True_, TypeError),
    (torch.tensor(True), TypeError),
    (2.0, TypeError),
    (np.float32(2), TypeError),
    (torch.tensor(2.0), TypeError),
    (torch.tensor(-2), ValueError),
    (torch.ones(2, dtype=torch.int64), TypeError),
    ("2", TypeError),
    ([2], TypeError),
    (2**62 + 1, ValueError),
]


@kinds
@pytest.mark.parametrize(("count", "error"), _WRONG_COUNTS, ids=repr)
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("updates", [0, 3])
def test_wrong_count_changes_nothing(
    kind: str, count: Any, error: type[Exception], asked: bool, updates: int
) -> None:
    run = CountedRun(kind, CURVE, 8, asked)
    for _ in range(updates):
        run.update(20)
    before = run.shown()
    with pytest.raises(error, match=r"^count\(\) = " if asked else "^count = "):
        run.update(count)
    assert run.shown() == before
    run.update(20)
    run.check(20 * (updates + 1), updates + 1)


@kinds
def test_step_without_count_names_both_remedies(kind: str) -> None:
    run = CountedRun(kind, CURVE, 8)
    run.update(20)
    before = run.shown()
    run.optimizer.step()
    with pytest.raises(TypeError, match=r"with unit = 8, .*step\(count=n\).*pass count=, a function"):
        run.part.step()
    assert run.shown() == before


@kinds
def test_count_argument_overrides_count_function(kind: str) -> None:
    run = CountedRun(kind, CURVE, 8, asked=True)
    run.optimizer.step()
    run.part.step(count=np.uint8(200))
    run.check(200, 1)


@pytest.mark.parametrize("unit", [None, 8])
@kinds
def test_count_is_passed_by_keyword(kind: str, unit: int | None) -> None:
    run = CountedRun(kind, CURVE, unit)
    if unit is None:
        with pytest.raises(TypeError, match=r"step\(count=8\), but the curve counts updates.*unit=n"):
            run.part.step(count=8)
        if kind == "scheduler":
            with pytest.raises(TypeError, match=r"step\(count=8\), but the curve counts updates"):
                run.part.step(3, count=8)
    elif kind == "scheduler":
        for epoch in (0, 1, 8):
            with pytest.raises(TypeError, match=rf"step\({epoch}\) with unit = 8: write step\(count=n\)"):
                run.part.step(epoch)
            with pytest.raises(TypeError, match=rf"step\({epoch}\) with unit = 8: write step\(count=n\)"):
                run.part.step(epoch, count=8)
    else:
        with pytest.raises(TypeError, match="positional"):
            run.part.step(8)
    run.check(0, 0)


@kinds
def test_new_group_follows_the_clock(kind: str) -> None:
    run = CountedRun(kind, CURVE, 8)
    run.update(100)
    group: dict[str, Any] = {"params": [torch.nn.Parameter(torch.ones(1))]}
    run.optimizer.add_param_group(group | {"lr": 0.5, "weight_decay": 0.5})
    run.update(100)
    assert run.values() == [*run.expected_values(25), 0.5 * CURVE(25)]
    run.part.load_state_dict(through_file(run.part.state_dict()))
    assert run.values() == [*run.expected_values(25), 0.5 * CURVE(25)]


_composed: dict[str, Any] = {
    "first": lambda optimizer, ours: lr_scheduler.SequentialLR(
        optimizer, [ours, lr_scheduler.ConstantLR(optimizer, 0.5, 99)], [20]
    ),
    "second": lambda optimizer, ours: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 0.5, 99), ours], [20]
    ),
    "chained": lambda optimizer, ours: lr_scheduler.ChainedScheduler([ours], optimizer),
}


@pytest.mark.filterwarnings("ignore:the curve stayed at step 0:plateau_jax.CurveWarning")
@pytest.mark.parametrize("place", _composed)
@examples(20)
@given(st.lists(st.integers(0, 60), min_size=41, max_size=41), st.integers(0, 39), st.booleans())
def test_clock_inside_torchs_schedulers(
    place: str, given_counts: list[int], saved_at: int, optimizer_first: bool
) -> None:
    def start() -> tuple[Any, Any, Any]:
        optimizer = optimizer_with([0.5])
        ours = lambda_lr(optimizer, CURVE, unit=8, count=lambda: given_counts[update])
        return optimizer, ours, _composed[place](optimizer, ours)

    def clock(update: int) -> int | None:
        """Return the clock of our scheduler after this many updates; None if it is not its turn."""
        if place == "second":
            return sum(given_counts[20:update]) // 8 if update >= 20 else None
        return sum(given_counts[:update]) // 8 if update < 20 or place == "chained" else None

    optimizer, ours, scheduler = start()
    for update in range(41):
        expected = clock(update)
        assert lrs_of(optimizer) == [0.25 if expected is None else 0.5 * CURVE(expected)]
        assert expected is None or ours.clock == expected
        if update == saved_at:
            saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
            since = 20 if place == "second" else 0
            resumed, again, composed = start()
            pairs = list(zip((resumed, composed), saved, strict=True))
            for part, state in pairs if optimizer_first else pairs[::-1]:
                part.load_state_dict(state)
            assert lrs_of(resumed) == lrs_of(optimizer)
            assert (again.consumed, again.last_epoch) == (ours.consumed, ours.last_epoch)
            assert expected is None or again.consumed == sum(given_counts[since:update])
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("place", ["first", "second", "chained"])
def test_count_function_is_called_once_per_update(place: str) -> None:
    pending = 0

    def take() -> int:
        nonlocal pending
        taken, pending = pending, 0
        return taken

    optimizer = optimizer_with([0.5])
    ours = lambda_lr(optimizer, CURVE, unit=8, count=take)
    scheduler = _composed[place](optimizer, ours)
    for update in range(40):
        pending += 100 + update
        optimizer.step()
        scheduler.step()
    since, until = (20, 40) if place == "second" else (0, 19 if place == "first" else 40)
    assert ours.consumed == sum(range(100 + since, 100 + until))


@pytest.mark.parametrize("place", _composed)
def test_torchs_schedulers_need_count_function(place: str) -> None:
    optimizer = optimizer_with([0.5])
    scheduler = _composed[place](optimizer, lambda_lr(optimizer, CURVE, unit=8))
    with pytest.raises(TypeError, match=r"with unit = 8, .*count=, a function without arguments"):
        advance(optimizer, scheduler, 22)
