"""The fitted law and its forecasts equal those of an oracle; comparisons and plots show them."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from matplotlib.figure import Figure
from support.curves.descriptions import build, descriptions
from support.errors import pairs
from support.examples import examples
from support.forecasts.logs import logged, losses_of
from support.forecasts.loss_oracle import LossOracle

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.loss_comparison import LossDifference
from plateau_jax.forecasts.loss_law import schedule_sums
from plateau_jax.theory.curve_parts import largest_multiplier
from plateau_jax.validation.curve_warning import suppress_warnings

mpl.use("agg")


def curves(total: int) -> st.SearchStrategy[PlateauCurve]:
    """Draw curves that fall to a third of their peak or less."""
    return st.builds(
        PlateauCurve,
        st.just(total),
        warmup_steps=st.integers(0, total // 10),
        decay_shape=st.sampled_from(["cosine", "linear", "1-sqrt"]),
        min_lr_ratio=st.sampled_from([0.0, 0.1, 0.3]),
        plateaus=st.sampled_from([(), [(0, 80)], [(30, 20)]]),
    )


EVENLY = np.arange(8, 601, 8)  # more than there are groups
MOSTLY_EARLY = np.r_[np.arange(30, 121, 2), np.arange(150, 601, 75)]  # 7 after the first fifth


@st.composite
def trained(draw: Any) -> LossRun:
    """Draw a run whose losses follow the law, with some independent noise."""
    curve = draw(curves(600))
    steps = draw(st.sampled_from([EVENLY, MOSTLY_EARLY]))
    seed = draw(st.integers(0, 1000))
    floor, scale = draw(st.floats(0, 4)), draw(st.floats(0.3, 2))
    # Far from 0.44 the penalty on the exponent is a misfit, and the fit may be rejected.
    exponent, noise = draw(st.floats(0.3, 0.6)), draw(st.floats(0, 0.01))
    peak = draw(st.sampled_from([1e-3, 1.2e-3]))
    sums = np.array([LossOracle.sums(LossOracle.lrs(curve, 1)[:step]) for step in steps]).T
    losses = floor + scale * (sums[0] / 200) ** -exponent + noise * sums[1] ** 0.8
    errors = 1e-3 * np.random.default_rng(seed).standard_normal(len(steps))
    with suppress_warnings():  # the first losses of a warmup may look like perplexities
        return LossRun(curve, peak, steps, losses * (1 + errors))


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


@examples(12)
@given(trained(), st.data())
def test_forecasts_of_a_run_equal_those_of_the_oracle(run, data) -> None:
    check_forecasts([run], data)


@examples(8)
@given(trained(), curves(900) | st.just(StagedCurve([(50, 1.0), (850,)])), st.data())
def test_forecasts_of_two_runs_equal_those_of_the_oracle(run, curve, data) -> None:
    """Nearly of the same law: the second one has the losses of the first fit."""
    steps = np.arange(30, 901, 30)
    losses = np.minimum(fit_losses(run).losses(curve, steps, run.peak_value), 12)  # in nats
    factor = data.draw(st.sampled_from([1.0, 1.008]))
    check_forecasts([run, LossRun(curve, run.peak_value, steps, factor * losses)], data)


def check_forecasts(runs: list[LossRun], data: st.DataObject) -> None:
    """Compare the forecasts of two curves with those of the oracle."""
    fit, oracle = fit_losses(runs), LossOracle(runs)
    first, other = data.draw(curves(1200)), data.draw(curves(1200))
    peak = 1.3 * runs[0].peak_value if data.draw(st.booleans()) else runs[0].peak_value
    comparison = fit.compare({"first": first, "other": other}, peak)
    close(fit.residual_sd, oracle.residual())
    for curve, forecast in pairs((first, other), comparison.forecasts):
        loss, half = oracle.forecast(curve, peak)
        close(forecast[:3], (loss, loss - half, loss + half))
        assert forecast == fit.predict(curve, peak)
        close(fit.losses(curve, [curve.total_steps], peak), [loss])
        terms = oracle.terms(curve, peak)
        for words, term, limit in (("first fifth", terms.c, 0.005), ("one run alone", terms.d, 0.006)):
            assert any(words in reason for reason in forecast.reasons) == (abs(term) > limit * loss)
    if first != other:
        difference, half = oracle.difference(other, first, peak)
        close(comparison.differences[1], (difference, difference - half, difference + half))
    assert comparison.differences[0] == (0, 0, 0)


CURVE = PlateauCurve(1000, warmup_steps=50)
RUN = logged(CURVE, 10)
FIT = fit_losses(RUN)
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
HALF = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
TWIN = StagedCurve([(50, 1.0), (950, 0.0, "cosine")])  # of `CURVE`, described differently


def test_runs_without_a_decay_are_not_fitted_alone() -> None:
    stable, steps = StagedCurve([(50, 1.0), (950,)]), np.arange(100, 1001, 40)
    runs = [logged(CURVE, 40), LossRun(stable, 1e-3, steps, 1.004 * FIT.losses(stable, steps))]
    loss, half = LossOracle(runs).forecast(WSD, 1e-3)
    close(fit_losses(runs).predict(WSD)[:3], (loss, loss - half, loss + half))


def test_units_of_the_learning_rate_do_not_matter() -> None:
    """Peaks ten times as high give the same law, and the peak is the largest learning rate."""
    scaled = fit_losses(LossRun(CURVE, 1e-2, RUN.steps, RUN.losses))
    close(scaled.predict(WSD)[:3], FIT.predict(WSD)[:3])
    assert fit_losses(LossRun(HALF, 2e-3, RUN.steps, RUN.losses)).predict(HALF).reasons == ()
    runs = [LossRun(HALF, 2e-3 * (1 - 9e-7), RUN.steps, 1.001 * RUN.losses), RUN]
    for fit in (fit_losses(runs), fit_losses(runs[::-1])):
        assert set(fit.runs) == set(runs)
        assert fit.predict(HALF, 2e-3).reasons == fit.predict(CURVE, 1e-3).reasons == ()


def test_run_copies_its_arrays() -> None:
    steps, losses = RUN.steps.copy(), RUN.losses.copy()
    run = LossRun(CURVE, 1e-3, steps, losses)
    steps[:], losses[:] = 0, 0
    for same in (run, copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        np.testing.assert_array_equal(same.steps, RUN.steps)
        np.testing.assert_array_equal(same.losses, RUN.losses)
        assert (same.steps.dtype, same.losses.dtype) == (np.int64, np.float64)
        assert same.curve == CURVE
        assert repr(same) == repr(run)
        for array in (same.steps, same.losses):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(FrozenInstanceError):
        run.peak_value = 1  # pyright: ignore[reportAttributeAccessIssue]  (what is tested)
    assert "steps=10…1000" in repr(run)


def test_losses_keep_the_order_and_shape_of_steps() -> None:
    steps = np.random.default_rng(0).integers(1, 1001, (4, 200))
    actual = FIT.losses(CURVE, steps)
    assert (actual.shape, actual.dtype) == ((4, 200), np.float64)
    np.testing.assert_allclose(actual, FIT.losses(CURVE, range(1, 1001))[steps - 1], rtol=1e-12)
    assert FIT.losses(CURVE, 1000).shape == ()
    for empty in ([], range(0), np.zeros((2, 0)), np.array([], object)):
        values = FIT.losses(CURVE, empty)
        assert (values.shape, values.dtype) == (np.shape(empty), np.float64)
    assert FIT.losses(PlateauCurve(110, warmup_steps=10), [1]) == np.inf


def test_longest_run_and_curve() -> None:
    total = 2**31 - 1
    curve = PlateauCurve(total, warmup_steps=10**6)
    steps = np.linspace(2**27, total, 30).astype(int)
    fit = fit_losses(LossRun(curve, 1e-3, steps, losses_of(curve, steps)))
    assert fit.predict(curve).loss == pytest.approx(losses_of(curve, steps, 0.0)[-1], rel=1e-3)


def test_only_equal_curves_are_the_same() -> None:
    """Although a law does not see zeros at the end."""
    curve = PlateauCurve(1000, warmup_steps=50, plateaus=[(0, 60)], decay_shape="linear")
    decay = int(curve.table.begin[-2])
    staged = [(50, 1.0), (decay - 50,)]
    comparison = FIT.compare({
        "first": curve,
        "twin": StagedCurve([*staged, (1000 - decay, 0.0, "linear")]),
        "zeros": StagedCurve([*staged, (1000 - decay, 0.0, "linear"), (100,)]),
        "other": StagedCurve([*staged, (1000 - decay, 0.0, "cosine")]),
    })  # fmt: skip
    _, same, *different = comparison.differences
    assert same == (0, 0, 0)
    assert all(low < difference < high for difference, low, high in different)


def test_comparison_prints_a_table() -> None:
    later = PlateauCurve(1000, warmup_steps=51)
    curves = {"a < b": CURVE, "twin": TWIN, "later": later, "longer": PlateauCurve(3000)}
    comparison = FIT.compare(curves)
    assert comparison.differences[:2] == ((0, 0, 0), (0, 0, 0))
    lines = str(comparison).splitlines()
    assert lines[0].split() == ["loss", "interval", "difference", "interval"]
    assert lines[1].startswith("a < b ")
    assert lines[2].endswith("the same curve")
    assert lines[3].endswith("not distinguishable")
    assert lines[4].startswith("longer")
    assert "not distinguishable" not in lines[4]
    assert lines[5] == ""
    assert max(map(len, lines)) <= 90
    assert "longer: it has 3 times as many steps" in " ".join(lines)
    root = ElementTree.fromstring(comparison._repr_html_())
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert [row[0] for row in rows] == ["", *curves]
    assert [row[1] for row in rows[1:]] == [f"{forecast.loss:.3f}" for forecast in comparison.forecasts]
    assert hash(comparison) == hash(FIT.compare(curves))


@pytest.mark.parametrize("drawn", [None, CURVE, [CURVE, WSD], {"mine": CURVE}])
def test_plot_shows_losses_and_forecasts(drawn) -> None:
    ax = Figure().subplots()
    assert FIT.plot(drawn, ax=ax) is ax
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["logged losses", "fitted law"]
    count = 0 if drawn is None else len(drawn) if isinstance(drawn, list | dict) else 1
    assert len(ax.collections) == len(labels) - 2 == count
    logged_line, fitted_line, *forecasts = ax.lines
    np.testing.assert_array_equal(logged_line.get_ydata(), RUN.losses[RUN.steps > 80])
    assert fitted_line.get_ydata()[-1] == pytest.approx(FIT.losses(CURVE, 1000))
    if count:
        expected = FIT.predict(CURVE)
        band = ax.collections[0].get_paths()[0].vertices
        assert forecasts[0].get_ydata()[-1] == pytest.approx(expected.loss)
        ends = sorted(set(band[band[:, 0] == 1000, 1].tolist()))
        assert ends == pytest.approx([expected.low, expected.high])
    assert isinstance(drawn, dict) == (labels[2:] == ["mine"])


def test_difference_that_may_be_0_is_not_distinguishable() -> None:
    assert LossDifference(0.1, 0.01, 0.2).is_distinguishable
    assert not LossDifference(0.1, 0.0, 0.2).is_distinguishable
    assert not LossDifference(-0.1, -0.2, 0.0).is_distinguishable


# The sums of the law of the loss: equal to their formulas, summed term by term.


def check_sums(curve: Curve, peak: float, steps: Any, tolerance: float) -> None:
    """Compare with sums up to each step, term by term."""
    lrs = LossOracle.lrs(curve, peak)
    expected = [LossOracle.sums(lrs[:step]) for step in np.ravel(steps)]
    progress, noise = schedule_sums(curve, peak, np.array(steps))
    assert progress.shape == noise.shape == np.shape(steps)
    actual = np.stack([progress.ravel(), noise.ravel()], axis=1)
    np.testing.assert_allclose(actual, expected, rtol=tolerance)


@examples(60)
@given(
    descriptions(range(4), scaled=True),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.floats(1e-6, 10),
)
def test_sums_equal_their_formula(description, fractions, peak) -> None:
    curve = build(description)
    assume(curve.total_steps <= 20_000)
    steps = [max(1, round(fraction * curve.total_steps)) for fraction in fractions]
    check_sums(curve, peak, steps, 1e-11)


LEVELS = st.sampled_from([1.0, 0.1, 1e-3, 1e-6, 1e-12])
SHAPES = st.sampled_from(["linear", "1-sqrt", "exponential", "(1-x)^20", "1-x^20", "t^-4"])


@examples(60)
@given(st.lists(st.tuples(st.sampled_from([1, 90]), LEVELS, SHAPES), min_size=12, max_size=40), LEVELS)
def test_sums_of_levels_of_every_magnitude(stages, start) -> None:
    """A learning rate may be larger than the sum of all that come after it."""
    curve = StagedCurve(stages, start=start)
    steps = [curve.total_steps]
    check_sums(curve, 1.0, steps, 1e-11)


def lines_between(total: int, stages: int) -> StagedCurve:
    """Return straight lines between noisy levels, as a log of many learning rates gives, with jumps."""
    rng = np.random.default_rng(0)
    steps = np.diff(np.linspace(0, total, stages + 1).astype(int))
    levels = np.abs(np.cos(np.linspace(0, 1.55, stages)) + 1e-3 * rng.standard_normal(stages))
    levels[rng.integers(0, stages, 5)] *= 1e-3
    levels[stages // 2 :] *= 0.05
    with suppress_warnings():
        return StagedCurve([(int(n), float(to) / 2) for n, to in zip(steps, levels, strict=True)])


LRS = np.cos(np.linspace(0, 1.5, 2_000)) * np.where(np.arange(2_000) < 1_200, 1, 0.1)
CURVES = {
    "cosine": PlateauCurve(160_000, warmup_steps=3_000),
    "plateaus": PlateauCurve(120_000, warmup_steps=100, plateaus=[(10, 20), (55, 40)], min_lr_ratio=0.1),
    "jumps": StagedCurve([(5_000, 1.0), (20_000,), (0, 0.01), (40_000,), (0, 0.7), (20_000, 0.0)]),
    "pauses": StagedCurve([(0, 1.0), (20_000,), (0, 0.0), (5_000,), (0, 0.5), (50_000, 0.0, "1-sqrt")]),
    "exponential": StagedCurve([(100, 1.0), (80_000, 1e-6, "exponential"), (30_000, 0.0)]),
    "sawteeth": PlateauCurve(12_000, warmup_steps=99).then(PlateauCurve(12_000)).then(PlateauCurve(59_999)),
    "one drop": StagedCurve([(20, lr) for lr in LRS.tolist()]),
}


@pytest.mark.parametrize(
    "curve", [*CURVES.values(), lines_between(140_000, 300), lines_between(150_000, 5_000)]
)
def test_sums_of_long_curves_equal_their_formula(curve) -> None:
    """Parts of several steps stand for single ones. The steps may have any order and shape."""
    borders = [begin + offset for begin in curve.table.begin[1:3] for offset in (-1, 50)]
    fractions = (np.array([1.0, 0.33, 0.85, 0.999]) * curve.total_steps).astype(int)
    steps = np.array([fractions, np.maximum(borders, 1)])
    check_sums(curve, 2e-3, steps, 1e-5)


@examples(40)
@given(descriptions(range(4), scaled=True), st.floats(0, 1))
def test_largest_multiplier_is_that_of_all_steps(description, fraction) -> None:
    curve = build(description)
    assume(curve.total_steps <= 100_000)
    updates = max(1, round(fraction * curve.total_steps))
    assert largest_multiplier(curve, updates) == curve(np.arange(updates)).max()
