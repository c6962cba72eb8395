"""`best_peak` equals an oracle, never advises a peak beyond those that were run, and says what to run."""

import math
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from matplotlib.figure import Figure
from support.examples import examples
from support.forecasts.law_runs import changed, logged, losses_of, rows_of
from support.forecasts.loss_oracle import best_peak_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, best_peak, fit_losses
from plateau_jax.forecasts.best_peaks import BestPeak, best_peak_of_fits
from plateau_jax.forecasts.loss_comparison import LossForecast

mpl.use("agg")

CURVE = PlateauCurve(1000, warmup_steps=50)
LONGER = PlateauCurve(2000, warmup_steps=50, decay_shape="linear")
HALF = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
PEAKS = 5e-4, 1e-3, 2e-3
LOGGED = [logged(CURVE, peak=peak) for peak in PEAKS]
RUNS = [changed(run, run.losses + extra) for run, extra in zip(LOGGED, (0.02, 0.0, 0.01), strict=True)]
BEST = best_peak(RUNS, LONGER)


def from_forecasts(peaks: Any, forecasts: Any) -> BestPeak:
    """Find the best peak from given forecasts."""
    pairs = zip(peaks, forecasts, strict=True)
    fits: Any = {peak: Mock(**{"predict.return_value": forecast}) for peak, forecast in pairs}
    return best_peak_of_fits(fits, CURVE)


@examples(200)
@given(
    st.lists(st.sampled_from([1.1, 1.2, 1.6, 2.0, 2.5, 2.6]), min_size=2, max_size=5),
    st.lists(st.integers(2500, 2600), min_size=6, max_size=6),
)
@example([2.0, 2.0], [2700, 2650, 2600])  # the minimum lies beyond the peaks
@example([2.0, 2.0], [2600, 2650, 2700])
@example([2.0, 2.0], [2600, 2700, 2750])  # concave
@example([2.0, 2.0], [2600, 2600 - 1e-6, 2600])
@example([4.0, 2.0], [2700, 2600, 2700])
@example([1.1, 2.0], [2700, 2600, 2700])
@example([2.2, 1.1, 2.3], [2700, 2600, 2610, 2700])
def test_parabola_equals_that_of_the_oracle(factors, thousandths) -> None:
    peaks = (1e-4 * np.cumprod([1.0, *factors])).tolist()
    losses = [loss / 1000 for loss in thousandths[: len(peaks)]]
    forecasts = [LossForecast(loss, loss - 0.01, loss + 0.01) for loss in losses]
    expected = best_peak_of(peaks, losses)
    if expected is None:
        with pytest.raises(ValueError, match="do not show the best peak") as caught:
            from_forecasts(peaks, forecasts)
        listed = ", ".join(f"{peak:g} ({loss:.4g})" for peak, loss in zip(peaks, losses, strict=True))
        assert str(caught.value).startswith(f"the forecasts at {listed} do not show")
        return
    result = from_forecasts(peaks, forecasts)
    assert (result.peak, result.low, result.high) == pytest.approx(expected[:3], rel=1e-6)
    assert result.forecast.loss == pytest.approx(expected[3])
    assert peaks[0] <= result.low <= result.peak <= result.high <= peaks[-1]
    assert (result.peaks, result.forecasts) == (tuple(peaks), tuple(forecasts))


def test_interval_is_the_widest_and_reasons_come_once() -> None:
    forecasts = [
        LossForecast(2.8, 2.6, 3.0, ("far off",)),
        LossForecast(2.62, 2.6, 2.64, ("late", "long")),
        LossForecast(2.6, 2.55, 2.65, ("long",)),
        LossForecast(2.63, 2.6, 2.66, ("early", "long")),
    ]
    forecast = from_forecasts((2e-4, *PEAKS), forecasts).forecast
    assert forecast.reasons == ("late", "long", "early")
    assert (forecast.loss - forecast.low, forecast.high - forecast.loss) == pytest.approx((0.05, 0.05))


def test_peak_is_the_largest_learning_rate() -> None:
    """Of runs and curves that do not reach 1, too; and runs of a peak are fitted together."""
    runs = [LossRun(HALF, 2 * run.peak_value, run.steps, run.losses) for run in RUNS]
    low = StagedCurve([(50, 0.25), (1950, 0.0)])
    result, expected = best_peak(runs, low), best_peak(RUNS, StagedCurve([(50, 1.0), (1950, 0.0)]))
    assert result.peaks == expected.peaks == PEAKS
    assert result.forecast.loss == pytest.approx(expected.forecast.loss)
    assert result.peak == pytest.approx(expected.peak)
    assert result.forecast.reasons == expected.forecast.reasons
    more = LossRun(HALF, 2e-3 * (1 + 9e-7), RUNS[1].steps, 1.001 * RUNS[1].losses)
    result = best_peak([more, *RUNS], LONGER)
    assert result.peaks == (5e-4, more._largest_learning_rate(), 2e-3)  # the largest of its runs
    assert result.forecasts[1] == fit_losses([more, RUNS[1]]).predict(LONGER, result.peaks[1])


def test_best_peak_prints_one_line_and_a_table() -> None:
    forecast = LossForecast(2.918, 2.897, 2.939, ("long",))
    best = BestPeak(1.31e-3, 8.9e-4, 1.9e-3, forecast, PEAKS, (forecast,) * 3)
    assert str(best) == "1.3e-03 (8.9e-04 to 1.9e-03 are within 0.003): 2.918, between 2.897 and 2.939"
    root = ElementTree.fromstring(BEST._repr_html_())
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert [row[0] for row in rows] == ["peak", "0.0005", "0.001", "0.002"]
    assert [row[1] for row in rows[1:]] == [f"{forecast.loss:.3f}" for forecast in BEST.forecasts]
    text = "".join(root.itertext())
    assert str(BEST) in text
    assert all(reason in text for reason in BEST.forecast.reasons)


def test_plot_shows_the_parabola_and_its_minimum() -> None:
    ax = Figure().subplots()
    assert BEST.plot(ax=ax) is ax
    parabola = next(line for line in ax.lines if line.get_label() == "parabola")
    x, y = (np.asarray(values) for values in parabola.get_data())
    assert (x[0], x[-1]) == pytest.approx((5e-4, 2e-3))
    assert y[np.argmin(y)] == pytest.approx(BEST.forecast.loss, abs=1e-5)
    assert y[[0, -1]] == pytest.approx([BEST.forecasts[0].loss, BEST.forecasts[2].loss])
    assert ax.get_xscale() == "log"
    assert f"best peak, {BEST.peak:.1e}" in [text.get_text() for text in ax.get_legend().get_texts()]


def read_log(peak: float, warmup: int, total: int, *, is_next: bool, has_curve: bool) -> LossRun:
    """Read the log of a run whose learning rates were logged every 100 steps."""
    curve = PlateauCurve(total, warmup_steps=warmup, plateaus=[(30, 40)])
    steps = np.arange(100, total + 1, 100)
    losses = losses_of(curve, steps, 0.0) + 0.02 * math.log2(peak / 1.2e-3) ** 2
    lrs = peak * curve(steps if is_next else steps - 1)
    return LossRun.read(rows_of(step=steps, loss=losses, lr=lrs), curve if has_curve else None)


@pytest.mark.parametrize("is_next", [False, True])
@pytest.mark.parametrize("has_curve", [False, True])
def test_logs_of_one_peak_are_fitted_together(is_next, has_curve) -> None:
    """Their learning rates miss it by up to 5 %."""
    runs = [
        read_log(peak, warmup, total, is_next=is_next != (total == 4000), has_curve=has_curve)
        for peak in PEAKS
        for warmup, total in ((300, 3000), (250, 4000))
    ]
    peaks = [run._largest_learning_rate() for run in runs]
    longer = PlateauCurve(6000, warmup_steps=300)
    result = best_peak(runs, longer)
    assert result.peaks == tuple(max(peaks[i : i + 2]) for i in (0, 2, 4)) == pytest.approx(PEAKS, rel=0.05)
    assert not any("peak" in reason for forecast in result.forecasts for reason in forecast.reasons)
    fit = fit_losses(runs[2:4])
    for peak in (None, *peaks[2:4]):
        assert not any("peak" in reason for reason in fit.predict(longer, peak).reasons)


def test_warnings_name_the_runs_of_the_list() -> None:
    spiked = changed(RUNS[0], np.where(RUNS[0].steps == 520, 1.5, 1.0) * RUNS[0].losses)
    with pytest.warns(UserWarning, match=r"^runs\[2\]: the loss spikes at step 520: left out$"):
        best_peak([*RUNS[1:], spiked], LONGER)
