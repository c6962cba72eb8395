"""`find_curve`: the curves that it finds give every logged learning rate, with few stages."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from support.examples import examples
from support.forecasts.logs import rows_of

from plateau_jax import Curve, PlateauCurve, StagedCurve, find_curve
from plateau_jax.logged_lrs.found_curve import LoggedCurve

Ints = NDArray[np.int64]
Floats = NDArray[np.float32] | float

PEAK = 3e-4


def printed(digits: int, lrs: Floats) -> list[str]:
    return [f"{lr:.{digits - 1}e}" for lr in np.atleast_1d(lrs).tolist()]


def found(curve: Curve, updates: Ints, digits: int = 4, peak: float = PEAK) -> LoggedCurve:
    lrs = printed(digits, curve.learning_rate(updates, peak))
    return find_curve(rows_of(step=updates.tolist(), lr=lrs))


@st.composite
def curves(draw: st.DrawFn) -> StagedCurve:
    """Curves from the stages of the search, whose stages end at multiples of 10."""
    warmup = 10 * draw(st.integers(1, 20))
    plateau = 10 * draw(st.sampled_from([0, 15, 60]))
    decay = 10 * draw(st.integers(10, 60))
    floor = draw(st.sampled_from([0.0, 0.1, 0.25]))
    shapes = ["cosine", "linear", "1-sqrt", "(1-x)^2"]
    if floor:
        shapes += ["exponential", "t^-0.5"]
    shape = draw(st.sampled_from(shapes))
    stages = [(warmup, 1.0), (plateau,), (decay, floor, shape)]
    return StagedCurve([stage for stage in stages if stage[0]])


@pytest.mark.slow
@examples(60)
@given(curves(), st.sampled_from([3, 4, 6]), st.sampled_from([1, 10]), st.booleans())
def test_found_curves_print_like_the_log(
    curve: Curve, digits: int, interval: int, is_whole: bool
) -> None:
    """And are no longer than the curve that was logged."""
    end = curve.total_steps
    if not is_whole:
        end -= end // 4
    updates = np.arange(0, end, interval)
    result = found(curve, updates, digits)
    assert result.curve is not None
    assert len(result.curve.stages) <= len(curve.stages)
    logged = curve.learning_rate(updates, PEAK).astype(float)
    for other, peak in [(result.curve, result.peak_value), *result.alternatives]:
        lrs = other.learning_rate(updates, peak).astype(float)
        # Half a unit of each last digit, and a little for float32.
        np.testing.assert_allclose(lrs, logged, rtol=1.05 * 10.0 ** (1 - digits), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["cosine", "linear", "1-sqrt", "(1-x)^2", "(1-x)^0.5"])
def test_the_logged_curve_itself_is_found(shape: str) -> None:
    curve = StagedCurve([(500, 1.0), (3_500,), (1_000, 0.0, shape)])
    result = found(curve, np.arange(0, 5_000, 10))
    assert result.curve == curve
    assert result.peak_value == PEAK
    assert result.alternatives == ()


def test_a_warmup_that_ends_between_two_rows() -> None:
    curve = StagedCurve([(207, 1.0), (9_793, 0.1, "cosine")])
    result = found(curve, np.arange(0, 10_000, 100), digits=6)
    assert result.curve == curve


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "1-x^2", "exponential", "t^-1"])
@pytest.mark.parametrize("digits", [3, 6])
def test_a_decay_begins_between_two_rows(shape: str, digits: int) -> None:
    floor = 0.0
    if shape in ("exponential", "t^-1"):
        floor = 0.1
    curve = StagedCurve([(100, 1.0), (337,), (263, floor, shape)])
    result = found(curve, np.append(np.arange(0, 700, 10), 700), digits=digits)
    assert [stage.shape for stage in result.curve.stages] == [s.shape for s in curve.stages]
    begin = result.curve.segments[2].first_step
    if digits == 6:
        assert begin == 437
    assert 430 <= begin <= 440


def test_stages_between_two_rows_are_guesses() -> None:
    """A warmup that ends at the second row may have any shape."""
    curve = StagedCurve([(100, 1.0), (500,), (400, 0.0, "1-sqrt")])
    result = found(curve, np.arange(0, 1_001, 100))
    assert result.guessed_stages == ((0, 99),)
    assert str(result).endswith("so its shape is a guess: steps 0 to 99")
    assert found(curve, np.arange(0, 1_001, 50)).guessed_stages == ()


def test_a_learning_rate_after_a_jump_is_not_on_the_stage_before() -> None:
    """Two rows lie on each of the first two cycles, and three on the last."""
    cycle = [(0, 1.0), (100, 0.0, "cosine")]
    curve = StagedCurve([(100, 0.0, "cosine"), *cycle, *cycle], start=1.0)
    result = found(curve, np.arange(0, 301, 50))
    assert result.guessed_stages == ((0, 99), (100, 199))


@pytest.mark.slow
def test_restarts() -> None:
    cycle = [(0, 1.0), (40, 0.0, "cosine")]
    curve = StagedCurve([(10, 1.0), (40, 0.0, "cosine"), *cycle, *cycle])
    assert found(curve, np.arange(130)).curve == curve


def test_a_run_that_is_still_going() -> None:
    """Its length and its last level are known only within a range."""
    curve = StagedCurve([(500, 1.0), (9_500, 0.1, "cosine")])
    result = found(curve, np.arange(0, 6_000, 50), digits=3)
    first, last = result.ends
    assert 9_000 < first <= 10_000 <= last < 11_000
    assert f"may end at any step from {first} to {last}, each with a different level" in str(result)


def test_a_run_whose_last_stage_has_one_length() -> None:
    curve = StagedCurve([(500, 1.0), (9_500, 0.1, "cosine")])
    result = found(curve, np.arange(0, 6_000, 50), digits=8)
    assert result.ends == (10_000, 10_000)
    assert "within its last stage, which would end at step 10000;" in str(result)


@pytest.mark.parametrize(("shape", "digits"), [("cosine", 5), ("(1-x)^2", 3), ("(1-x)^0.5", 3)])
@pytest.mark.parametrize("decay", [20_000, 100_000])
def test_a_run_may_end_where_its_curve_does(shape: str, digits: int, decay: int) -> None:
    """No later end is possible, because learning rates are not negative."""
    curve = StagedCurve([(100, 1.0), (decay, 0.0, shape)])
    first, last = found(curve, np.arange(0, 6_000, 50), digits).ends
    assert first <= curve.total_steps <= last


def test_a_decay_that_may_end_above_zero() -> None:
    """It reaches 0 after the log, or ends at any step before that."""
    curve = StagedCurve([(13_000,), (7_000, 0.1, "1-x^2")], start=1.0)
    first, last = found(curve, np.arange(0, 19_000, 250), digits=3).ends
    assert first == 18_751
    assert last > 20_000


def test_a_decay_ends_at_a_round_step_between_two_rows() -> None:
    """Of the steps between the rows, 3,000 is the roundest; not all of them are tried."""
    curve = StagedCurve.wsd(
        3_000, warmup_steps=200, decay_steps=500, decay_shape="1-x^2", min_lr_ratio=0.1
    )
    updates = np.arange(0, 3_601, 40)
    updates = updates[(updates <= 2_900) | (updates >= 3_030)]
    assert found(curve, updates, digits=3).curve.total_steps == 3_000


def test_steps_far_apart() -> None:
    """The search tries some of the steps between two rows: here there are 40,000,000."""
    curve = StagedCurve([(100_000_000, 1.0), (1_900_000_000, 0.1, "cosine")])
    updates = np.arange(0, 2_040_000_000, 40_000_000)
    assert found(curve, updates, digits=5).curve == curve


def test_a_plateau_that_is_still_going() -> None:
    curve = StagedCurve([(500, 1.0), (9_500,)])
    result = found(curve, np.arange(0, 2_000, 50))
    assert result.curve == StagedCurve([(500, 1.0)])
    assert result.ends is None


@pytest.mark.parametrize("digits", [1, 3, 6])
def test_a_constant_learning_rate_is_a_plateau(digits: int) -> None:
    """Not the first steps of a very long cosine, nor a line between equal levels."""
    curve = StagedCurve([(990,)], start=1.0)
    result = found(curve, np.arange(0, 1_000, 10), digits)
    assert result.curve == curve
    assert result.alternatives == ()
    assert result.ends is None


def test_alternatives_are_told_apart_by_a_later_update() -> None:
    """After three rows of an exponential fall it may be another one."""
    curve = StagedCurve([(100, 0.5, "exponential")], start=1.0)
    result = found(curve, np.array([0, 10, 20]), digits=3)
    assert result.alternatives
    step = result.decisive_step
    other, peak = result.alternatives[0]
    lr = result.curve.learning_rate(step, result.peak_value)
    assert printed(3, lr) != printed(3, other.learning_rate(step, peak))
    assert "as short, and possible too" in str(result)


def test_alternatives_are_told_apart_by_the_printed_decimals() -> None:
    """Near the end of a decay, learning rates that differ may print the same decimals."""
    curve = StagedCurve([(3_000, 1.0), (13_000,), (4_000, 0.0, "cosine")])
    updates = np.array([0, 9_546, 19_093])
    rates = [f"{rate:.3f}" for rate in curve.learning_rate(updates, 0.1).tolist()]
    result = find_curve(rows_of(step=updates.tolist(), lr=rates))
    other, other_peak = result.alternatives[0]
    rate = result.curve.learning_rate(result.decisive_step, result.peak_value)
    other_rate = other.learning_rate(result.decisive_step, other_peak)
    assert f"{rate:.3f}" != f"{other_rate:.3f}"


@pytest.mark.slow
def test_nothing_is_found_for_noise() -> None:
    lrs = PEAK * np.random.default_rng(0).uniform(0.5, 1, 100)
    result = find_curve(rows_of(step=list(range(100)), lr=lrs.tolist()))
    assert result.curve is None
    assert result.alternatives == ()
    assert "no curve of few stages" in str(result)


@pytest.mark.slow
def test_no_peak_is_invented_between_two_rows() -> None:
    """Steep lines with jumps at the rows would explain the log, with a peak of 3.19e-5."""
    curve = StagedCurve([(100, 1.0, "(1-x)^0.9"), (1_982,), (3_918, 0.0)], start=0.25)
    assert found(curve, np.arange(0, 6_993, 92), digits=7, peak=2e-5).curve is None


@pytest.mark.slow
def test_a_part_of_a_cosine_is_not_found() -> None:
    """No stage begins after the start of its shape."""
    curve = PlateauCurve(1_000).part(300)
    assert found(curve, np.arange(0, 700, 10), digits=6).curve is None
