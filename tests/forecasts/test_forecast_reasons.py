"""Why a forecast is less certain: for each reason, curves on both sides of its limit."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from support.forecasts.logs import logged

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.forecasts.forecast_reasons import list_reasons

CURVE = PlateauCurve(20_000, warmup_steps=1000)
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(logged(CURVE, 400))

NO_PLATEAU = "from runs without a plateau, longer ones came out up to 2 % worse"
NO_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
LONG_WARMUP = "no run had so long a warmup: the loss may be lower by tenths of a nat"
THREE_TIMES_AS_LONG = "it has 3 times as many steps as the longest run"
SHORT = "it has 0.299 times as many steps as the longest run: curves this short came out too high"


# Lengths and peaks.


def warm(total, warmup):
    return PlateauCurve(total, warmup_steps=warmup)


@pytest.mark.parametrize(
    ("curve", "reasons"),
    [
        (CURVE, []),
        (warm(40_980, 1000), [NO_PLATEAU]),
        (warm(60_000, 1000), [THREE_TIMES_AS_LONG, NO_PLATEAU]),
        (PlateauCurve(60_000), [THREE_TIMES_AS_LONG, NO_WARMUP, NO_PLATEAU]),
        (warm(6000, 1000), []),
        (warm(5980, 1000), [SHORT]),
    ],
)
def test_lengths_give_reasons(curve, reasons):
    assert FIT.predict(curve).reasons == tuple(reasons)


@pytest.mark.parametrize(
    ("peak", "reasons"),
    [
        (1e-3, []),
        (1.5e-3, ["its peak is 1.5 times that of the nearest run"]),
        (0.8e-3, ["its peak is 0.8 times that of the nearest run"]),
    ],
)
def test_peaks_give_reasons(peak, reasons):
    assert FIT.predict(CURVE, peak).reasons == tuple(reasons)


def reasons_of(curve, runs):
    """Return the reasons at a peak of 1."""
    return list_reasons(curve, 1.0, runs)


def run_with(curve, peak=1.0):
    """Return a run with one loss, after its last step."""
    return LossRun(curve, peak, [curve.total_steps], [3.0])


def test_peak_is_compared_with_the_nearest_run():
    runs = [run_with(CURVE, 0.9), run_with(CURVE, 2.0)]
    assert reasons_of(CURVE, runs) == ("its peak is 1.11 times that of the nearest run",)


# Warmups.


@dataclass(frozen=True)
class WarmupAfterOthers:
    """A warmup to forecast, after runs with these warmups, and the reason that it gives."""

    steps: int
    total: int = 1000
    runs: list[PlateauCurve] = field(default_factory=lambda: [warm(1000, 90)])
    reason: str | None = None


TWO_RUNS = [warm(1000, 90), warm(2000, 200)]
WITHOUT_WARMUP = [warm(1000, 0)]
WITH_AND_WITHOUT = [warm(1000, 0), warm(1000, 90)]


def run_from_lrs(curve, interval):
    """Return a run as a log of its learning rates gives it."""
    rows = []
    if curve.warmup_steps:
        rows.append({"step": 0, "lr": float(curve(0))})
    rows.extend(
        {"step": step, "loss": 3.0, "lr": float(curve(step))}
        for step in range(interval, curve.total_steps + 1, interval)
    )
    return LossRun.read(rows)


@pytest.mark.parametrize("interval", [None, 1, 40])
@pytest.mark.parametrize(
    "warmup",
    [
        WarmupAfterOthers(0, reason=NO_WARMUP),
        WarmupAfterOthers(12, reason=NO_WARMUP),
        WarmupAfterOthers(12, 2000, TWO_RUNS, reason=NO_WARMUP),
        WarmupAfterOthers(40, 2000, TWO_RUNS),
        WarmupAfterOthers(60),
        WarmupAfterOthers(90),
        WarmupAfterOthers(240),
        WarmupAfterOthers(27, 300),  # the same percentage
        WarmupAfterOthers(90, 300),  # the same number of steps
        WarmupAfterOthers(90, 4000),
        WarmupAfterOthers(360, 4000),
        WarmupAfterOthers(400, reason=LONG_WARMUP),
        WarmupAfterOthers(400, runs=WITHOUT_WARMUP, reason=LONG_WARMUP),
        WarmupAfterOthers(0, runs=WITHOUT_WARMUP),
        WarmupAfterOthers(0, 4000, WITHOUT_WARMUP),
        WarmupAfterOthers(0, runs=WITH_AND_WITHOUT),
        WarmupAfterOthers(90, runs=WITH_AND_WITHOUT),
    ],
)
def test_different_warmups_give_a_reason(warmup, interval):
    """Also those of learning rates from a log, of which only the logged ones are known."""
    if interval is None:
        runs = [run_with(curve) for curve in warmup.runs]
    else:
        runs = [run_from_lrs(curve, interval) for curve in warmup.runs]
    reasons = reasons_of(warm(warmup.total, warmup.steps), runs)
    about_warmup = [reason for reason in reasons if "warmup" in reason]
    if warmup.reason is None:
        assert about_warmup == []
    else:
        assert about_warmup == [warmup.reason]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (StagedCurve([(1000,)], start=1.0), PlateauCurve(1000)),
        (StagedCurve([(0, 1.0), (1000, 0.0)]), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=2), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=90, warmup_shape="cosine"), CURVE),
        (CURVE.cooldown(500, 100), CURVE),
        (StagedCurve([(50, 1.0), (450, 0.0), (50, 1.0), (450, 0.0)]), CURVE),  # restarts
    ],
)
def test_equal_warmups_give_no_reason(first, second):
    for curve, curve_of_run in ((first, second), (second, first)):
        reasons = reasons_of(curve, [run_with(curve_of_run)])
        assert "warmup" not in " ".join(reasons)


# Plateaus.


def logged_cosine(plateau):
    """Return a cosine as a log of learning rates gives it, with a plateau at 0.6 of the peak."""
    levels = np.cos(np.linspace(0, 1.5, 100)).tolist()
    stages = [(9, level) for level in levels[1:] if level > 0.6]
    stages += [(9, 0.6), (plateau, 0.6)]
    stages += [(9, level) for level in levels if level < 0.6]
    return StagedCurve(stages)


@pytest.mark.parametrize(
    ("curve_of_run", "has_plateau"),
    [
        (PlateauCurve(1000, warmup_steps=50), False),
        (WSD, True),
        (PlateauCurve(1000, plateaus=[(20, 9.8)]), False),
        (PlateauCurve(1000, plateaus=[(20, 10)]), True),
        (PlateauCurve(1000, plateaus=[(70, 10)]), False),  # below half the peak
        (logged_cosine(90), False),
        (logged_cosine(110), True),
    ],
)
def test_plateau_lets_a_fit_forecast_longer_decays(curve_of_run, has_plateau):
    total = curve_of_run.total_steps
    runs = [run_with(curve_of_run)]
    longer_cosine = PlateauCurve(int(1.3 * total))
    longer_fall_below_half = StagedCurve([(50, 1.0), (total,), (50, 0.45)])
    longer_fall_above_half = StagedCurve([(50, 1.0), (total,), (50, 0.55)])
    as_long = PlateauCurve(int(1.05 * total))
    assert (NO_PLATEAU in reasons_of(longer_cosine, runs)) == (not has_plateau)
    assert (NO_PLATEAU in reasons_of(longer_fall_below_half, runs)) == (not has_plateau)
    assert NO_PLATEAU not in reasons_of(longer_fall_above_half, runs)
    assert NO_PLATEAU not in reasons_of(as_long, runs)
