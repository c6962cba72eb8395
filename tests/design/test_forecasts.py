"""Answers of the design page about forecasts: those of `LossFit`, from logs that a user opens."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose
from support.curve_warnings import ignore_curve_warnings
from support.examples import examples
from support.forecasts.logs import CURVE, LOSSES, PEAK, RUN, STEPS, csv_of, opened, rows_of

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.design.answers import answer_comparison

WSD = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
TEXT = csv_of(step=STEPS, loss=LOSSES)
FEW = csv_of(step=STEPS[::5], loss=LOSSES[::5])


def run_of(text, *curve_and_peak, **columns):
    """Return the run that the page makes of a log."""
    answer = opened(text, *curve_and_peak, **columns)
    return json.loads(answer["run"])


def forecast(runs, *curves):
    """Return the answers about runs, and about curves and their peaks."""
    entries = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in curves]
    texts = [json.dumps(run) for run in runs]
    answer = answer_comparison({"curves": entries, "runs": texts})
    received = json.loads(json.dumps(answer))
    return received["fit"], received["forecasts"]


# Logs.


def test_columns_of_a_log_are_chosen():
    decay = np.linspace(1e-3, 1e-5, 47)
    lrs = np.array([0, 5e-4, 1e-3, *decay])
    text = csv_of(step=STEPS, _step=STEPS, a_loss=LOSSES + 1, lr=lrs)

    without_choice = opened(text, None, None)
    assert without_choice["argument"] == "step"
    assert without_choice["columns"] == ["step", "_step"]

    with_step = opened(text, None, None, step="step")
    assert with_step["argument"] == "loss"
    assert with_step["columns"] == ["step", "_step", "a_loss", "lr"]

    run = run_of(text, None, None, step="step", loss="a_loss")
    assert run["losses"][0] == LOSSES[0] + 1
    assert run["peak"] == 1e-3
    assert run["lrs_from"] == 20
    with ignore_curve_warnings():
        curve = Curve.from_dict(run["curve"])
    assert curve(STEPS) * 1e-3 == pytest.approx(lrs, abs=1e-8)


# Forecasts.

PLATEAUS = st.tuples(st.just(0), st.integers(0, 90))
CURVES = st.builds(
    PlateauCurve,
    st.integers(500, 3000),
    warmup_steps=st.integers(0, 200),
    decay_shape=st.sampled_from(["linear", "cosine"]),
    plateaus=st.tuples(PLATEAUS),
)
CURVES_AND_PEAKS = st.tuples(CURVES, st.floats(0.7e-3, 1.4e-3))


def check_forecast(shown, curve, peak, expected):
    """Check the answer about one curve. A forecast with a warmup of no run has no interval."""
    assert shown["loss"] == expected.loss
    if expected.is_known:
        assert shown["low"] == expected.low
        assert shown["high"] == expected.high
    else:
        assert shown["low"] is None
        assert shown["high"] is None
    assert shown["reasons"] == list(expected.reasons)
    line = shown["line"]
    assert line["steps"][-1] == curve.total_steps
    losses = FIT.losses(curve, line["steps"], peak)
    assert_allclose(line["losses"], losses, rtol=1e-5)
    half_width = expected.high - expected.loss
    assert line["half_widths"][-1] == pytest.approx(half_width, rel=1e-4)


def check_difference(shown, first, is_known):
    """Check the difference to the first forecast."""
    difference = shown["difference"]
    assert difference["difference"] == pytest.approx(shown["loss"] - first["loss"])
    assert (difference["low"] is not None) == is_known
    if not is_known:
        return
    if shown["loss"] == first["loss"]:
        assert difference["remark"] == "the same curve"
    elif difference["low"] <= 0 <= difference["high"]:
        assert difference["remark"] == "not distinguishable"
    else:
        assert difference["remark"] == ""


@examples(16)
@given(st.lists(CURVES_AND_PEAKS, min_size=1, max_size=4))
def test_forecasts_are_those_of_the_fit(pairs):
    """Each curve has its own peak; the differences are to the first."""
    _, answers = forecast([run_of(TEXT)], *pairs)
    forecasts_of_fit = [FIT.predict(curve, peak) for curve, peak in pairs]
    for shown, (curve, peak), expected in zip(answers, pairs, forecasts_of_fit, strict=True):
        check_forecast(shown, curve, peak, expected)
    first, *following = answers
    first_of_fit, *following_of_fit = forecasts_of_fit
    assert first["difference"] is None
    for shown, expected in zip(following, following_of_fit, strict=True):
        is_known = first_of_fit.is_known and expected.is_known
        check_difference(shown, first, is_known)


def test_differences_are_those_of_a_comparison():
    _, (_, of_wsd) = forecast([run_of(TEXT)], (CURVE, PEAK), (WSD, PEAK))
    comparison = FIT.compare({"first": CURVE, "second": WSD}, PEAK)
    _, expected = comparison.differences
    shown = of_wsd["difference"]
    assert shown["difference"] == expected.difference
    assert shown["low"] == expected.low
    assert shown["high"] == expected.high


def test_rejected_curves_do_not_hide_the_others():
    with ignore_curve_warnings():
        zeros = StagedCurve([(1000,)], start=0.0)
    _, answers = forecast(
        [run_of(TEXT)],
        (PlateauCurve(4001), PEAK),
        (zeros, PEAK),
        (CURVE, 0),
        (CURVE, 2e-3),
        (CURVE, PEAK),
        (WSD, PEAK),
    )
    too_long, of_zeros, at_zero, at_twice_the_peak, of_curve, of_wsd = answers
    assert "at most 4 times the 1000 steps of the longest run" in too_long["fault"]
    assert "learning rate" in of_zeros["fault"], of_zeros
    assert "learning rate" in at_zero["fault"], at_zero
    assert "0.002, is more than a factor of 1.5" in at_twice_the_peak["fault"]
    # The first curve has no forecast, to which there would be a difference.
    for shown in (of_curve, of_wsd):
        assert "fault" not in shown
        assert shown["difference"] is None


# Fits.


def test_rejected_fit_names_the_log():
    few = {**run_of(FEW), "name": "few.csv"}
    fit, answers = forecast([run_of(TEXT), few], (CURVE, PEAK))
    assert "few.csv: " in fit["fault"]
    assert answers == []


def test_runs_are_drawn_as_they_were_logged_and_fitted():
    fit, _ = forecast([run_of(TEXT)])
    (run,) = fit["runs"]
    logged = dict(zip(STEPS.tolist(), LOSSES.tolist(), strict=True))
    losses = [logged[step] for step in run["steps"]]
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    fitted = FIT.losses(CURVE, run["fitted_steps"])
    assert_allclose(run["fitted_losses"], fitted, rtol=1e-5)
    assert run["steps"][-1] == 1000
    assert run["fitted_steps"][-1] == 1000


def test_logs_that_miss_the_peak_are_fitted_together():
    """As `fit_losses` does."""
    lrs = 0.9997 * PEAK * CURVE(STEPS - 1).astype(float)
    columns = {"step": STEPS, "loss": LOSSES + 0.02, "lr": lrs}
    run = run_of(csv_of(**columns), None, None)
    assert run["peak"] != PEAK
    _, (shown,) = forecast([run_of(TEXT), run], (WSD, PEAK))
    second_run = LossRun.read(rows_of(**columns))
    expected = fit_losses([RUN, second_run]).predict(WSD, PEAK)
    assert shown["loss"] == expected.loss
