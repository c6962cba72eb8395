"""The fitted law and its forecasts equal those of an oracle; comparisons and plots show them."""

import pickle
from dataclasses import FrozenInstanceError, replace
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from forecasts.loss_oracle import LossOracle, N, S, lrs_of
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from support.curve_warnings import ignore_curve_warnings
from support.examples import examples
from support.forecasts.logs import LARGEST_LOSS, logged, losses_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses

mpl.use("agg")


def curves(total):
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
def trained(draw):
    """Draw a run whose losses follow the law, with some independent noise."""
    curve = draw(curves(600))
    steps = draw(st.sampled_from([EVENLY, MOSTLY_EARLY]))
    seed = draw(st.integers(0, 1000))
    floor = draw(st.floats(0, 4))
    scale = draw(st.floats(0.3, 2))
    # Far from 0.44 the penalty on the exponent is a misfit, and the fit may be rejected.
    exponent = draw(st.floats(0.3, 0.6))
    noise = draw(st.floats(0, 0.01))
    peak = draw(st.sampled_from([1e-3, 1.2e-3]))
    lrs = lrs_of(curve, 1)
    decrease = np.array([(S(lrs[:step]) / 200) ** -exponent for step in steps])
    increase = np.array([N(lrs[:step]) ** 0.8 for step in steps])
    errors = 1e-3 * np.random.default_rng(seed).standard_normal(len(steps))
    losses = floor + scale * decrease + noise * increase
    losses *= 1 + errors
    with ignore_curve_warnings():  # the first losses of a warmup may look like perplexities
        return LossRun(curve, peak, steps, losses)


def assert_close(actual, expected):
    assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


@examples(12)
@given(trained(), st.data())
def test_forecasts_of_a_run_equal_those_of_the_oracle(run, data):
    check_forecasts([run], data)


@examples(8)
@given(trained(), curves(900) | st.just(StagedCurve([(50, 1.0), (850,)])), st.data())
def test_forecasts_of_two_runs_equal_those_of_the_oracle(run, curve, data):
    """Nearly of the same law: the second one has the losses of the first fit."""
    steps = np.arange(30, 901, 30)
    fit = fit_losses(run)
    losses = fit.losses(curve, steps, run.peak_value)
    factor = data.draw(st.sampled_from([1.0, 1.008]))
    losses = factor * np.minimum(losses, LARGEST_LOSS)
    second_run = LossRun(curve, run.peak_value, steps, losses)
    check_forecasts([run, second_run], data)


def check_forecasts(runs, data):
    """Compare the forecasts of two curves with those of the oracle."""
    fit = fit_losses(runs)
    oracle = LossOracle(runs)
    first = data.draw(curves(1200))
    second = data.draw(curves(1200))
    peak = data.draw(st.sampled_from([1.0, 1.3])) * runs[0].peak_value
    assert_close(fit.residual_sd, oracle.sd)

    comparison = fit.compare({"first": first, "second": second}, peak)
    for curve, forecast in zip((first, second), comparison.forecasts, strict=True):
        loss, half = oracle.forecast(curve, peak)
        assert_close(forecast[:3], (loss, loss - half, loss + half))
        assert forecast == fit.predict(curve, peak)
        last_losses = fit.losses(curve, [curve.total_steps], peak)
        assert_close(last_losses, [loss])

    assert comparison.differences[0] == (0, 0, 0)
    if first != second:
        difference, half = oracle.difference(second, first, peak)
        expected = (difference, difference - half, difference + half)
        assert_close(comparison.differences[1], expected)


CURVE = PlateauCurve(1000, warmup_steps=50)
RUN = logged(CURVE, 10)
FIT = fit_losses(RUN)
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")


@pytest.mark.parametrize("curve", [StagedCurve([(50, 1.0), (950,)]), WSD], ids=["stable", "wsd"])
def test_runs_without_a_decay_are_not_fitted_alone(curve):
    """Nor is a run that has not reached its decay."""
    steps = np.arange(100, 1001, 40)  # all of them before a decay
    losses = 1.004 * FIT.losses(curve, steps)
    run_without_decay = LossRun(curve, 1e-3, steps, losses)
    runs = [logged(CURVE, 40), run_without_decay]
    loss, half = LossOracle(runs).forecast(WSD, 1e-3)
    forecast = fit_losses(runs).predict(WSD)
    assert_close(forecast[:3], (loss, loss - half, loss + half))


def test_peak_is_the_largest_learning_rate():
    half = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
    run_at_half = LossRun(half, 2e-3 * (1 - 9e-7), RUN.steps, 1.001 * RUN.losses)
    for runs in ([run_at_half, RUN], [RUN, run_at_half]):
        fit = fit_losses(runs)
        assert set(fit.runs) == set(runs)
        for forecast in (fit.predict(half, 2e-3), fit.predict(CURVE, 1e-3)):
            assert "peak" not in " ".join(forecast.reasons)


def test_run_copies_its_arrays():
    steps = RUN.steps.copy()
    losses = RUN.losses.copy()
    run = LossRun(CURVE, 1e-3, steps, losses)
    steps[:] = 0
    losses[:] = 0
    assert_array_equal(run.steps, RUN.steps)
    assert_array_equal(run.losses, RUN.losses)
    same = pickle.loads(pickle.dumps(run))
    for array in (run.steps, run.losses, same.steps, same.losses):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert repr(same) == repr(run)
    assert_array_equal(same.losses, RUN.losses)
    with pytest.raises(FrozenInstanceError):
        run.peak_value = 1
    assert "steps=10…1000" in repr(run)


def test_copy_of_a_fit_forecasts_the_same():
    copied = replace(FIT, noise=FIT.noise)
    assert copied.predict(CURVE) == FIT.predict(CURVE)


def test_losses_have_the_shape_of_steps():
    assert FIT.losses(CURVE, [[1000, 1, 500]]).shape == (1, 3)
    assert FIT.losses(CURVE, 1000).shape == ()


def test_loss_before_the_first_positive_lr_is_infinite():
    curve = PlateauCurve(110, warmup_steps=10)
    assert FIT.losses(curve, [1]) == np.inf


def test_longest_run_and_curve():
    total = 2**31 - 1
    curve = PlateauCurve(total, warmup_steps=10**6)
    steps = np.linspace(2**27, total, 30).astype(int)
    run = LossRun(curve, 1e-3, steps, losses_of(curve, steps))
    forecast = fit_losses(run).predict(curve)
    without_noise = losses_of(curve, steps, 0.0)
    assert forecast.loss == pytest.approx(without_noise[-1], rel=1e-3)


def test_only_equal_curves_are_the_same():
    """Although a law does not see zeros at the end."""
    stages = [(50, 1.0), (950, 0.0, "cosine")]
    comparison = FIT.compare(
        {
            "a < b": CURVE,
            "twin": StagedCurve(stages),
            "zeros": StagedCurve([*stages, (100,)]),
            "longer": PlateauCurve(3000),
        }
    )
    _, of_twin, of_zeros, _ = comparison.differences
    assert of_twin == (0, 0, 0)
    assert of_zeros.low < of_zeros.difference < of_zeros.high

    lines = str(comparison).splitlines()
    assert lines[0].split() == ["loss", "interval", "difference", "interval"]
    assert lines[1].startswith("a < b ")
    assert lines[2].endswith("the same curve")
    assert lines[3].endswith("not distinguishable")
    assert lines[4].startswith("longer")
    assert "not distinguishable" not in lines[4]
    assert max(map(len, lines)) <= 90
    assert "longer: it has 3 times as many steps" in " ".join(lines)

    table = ElementTree.fromstring(comparison._repr_html_())
    cells = [(line[0].text, line[1].text) for line in table.iter("tr")]
    losses = [f"{forecast.loss:.3f}" for forecast in comparison.forecasts]
    assert cells[1:] == list(zip(comparison.names, losses, strict=True))


@pytest.mark.parametrize(
    ("drawn", "count"),
    [
        (None, 0),
        ([CURVE, WSD], 2),
        ({"mine": CURVE}, 1),
    ],
)
def test_plot_shows_losses_and_forecasts(drawn, count):
    ax = Figure().subplots()
    assert FIT.plot(drawn, ax=ax) is ax
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["logged losses", "fitted law"]
    assert len(labels) - 2 == count
    assert len(ax.collections) == count
    assert ("mine" in labels) == isinstance(drawn, dict)
    logged_line, fitted_line, *forecasts = ax.lines
    shown_losses = RUN.losses[RUN.steps > 80]
    assert_array_equal(logged_line.get_ydata(), shown_losses)
    fitted_losses = fitted_line.get_ydata()
    assert fitted_losses[-1] == pytest.approx(FIT.losses(CURVE, 1000))
    if count == 0:
        return
    expected = FIT.predict(CURVE)
    forecast_losses = forecasts[0].get_ydata()
    assert forecast_losses[-1] == pytest.approx(expected.loss)
    (path,) = ax.collections[0].get_paths()
    steps, losses = path.vertices.T
    at_last_step = losses[steps == 1000]
    ends = [at_last_step.min(), at_last_step.max()]
    assert ends == pytest.approx([expected.low, expected.high])
