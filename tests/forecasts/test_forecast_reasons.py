"""Why a forecast is less certain: for each reason, curves on both sides of its limit."""

import numpy as np
import pytest
from support.forecasts.logs import logged

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.forecasts.forecast_reasons import list_reasons

CURVE = PlateauCurve(20_000, warmup_steps=1000)
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(logged(CURVE, 400))

# Parts of the reasons.
NO_PLATEAU = "without a plateau"
NO_WARMUP = "so short a warmup: the loss may be higher"
LONG_WARMUP = "so long a warmup: the loss may be lower"
THREE_TIMES_AS_LONG = "3 times as many steps"
SHORT = "0.299 times as many steps"


def check_reasons(reasons, parts):
    """Check that there is one reason for each part, which contains it."""
    for reason, part in zip(reasons, parts, strict=True):
        assert part in reason


# Lengths and peaks.


def warm(total, warmup):
    return PlateauCurve(total, warmup_steps=warmup)


@pytest.mark.parametrize(
    ("curve", "reasons"),
    [
        (CURVE, []),
        (warm(40_980, 1000), [NO_PLATEAU]),
        (PlateauCurve(60_000), [THREE_TIMES_AS_LONG, NO_WARMUP, NO_PLATEAU]),
        (warm(6000, 1000), []),
        (warm(5980, 1000), [SHORT]),
    ],
)
def test_lengths_give_reasons(curve, reasons):
    check_reasons(FIT.predict(curve).reasons, reasons)


def reasons_of(curve, runs):
    """Return the reasons at a peak of 1."""
    return list_reasons(curve, 1.0, runs)


def run_with(curve, peak=1.0):
    """Return a run with one loss, after its last step."""
    return LossRun(curve, peak, [curve.total_steps], [3.0])


def test_peak_is_compared_with_the_nearest_run():
    check_reasons(FIT.predict(CURVE, 1.5e-3).reasons, ["peak is 1.5 times"])
    runs = [run_with(CURVE, 0.9), run_with(CURVE, 2.0)]
    check_reasons(reasons_of(CURVE, runs), ["peak is 1.11 times"])


# Warmups.


ONE_RUN = [warm(1000, 90)]
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
    ("curve", "curves_of_runs", "reason"),
    [
        (warm(1000, 12), ONE_RUN, NO_WARMUP),
        (warm(2000, 40), TWO_RUNS, None),
        (warm(1000, 240), ONE_RUN, None),
        (warm(300, 27), ONE_RUN, None),  # the same percentage
        (warm(300, 90), ONE_RUN, None),  # the same number of steps
        (warm(4000, 360), ONE_RUN, None),
        (warm(1000, 400), ONE_RUN, LONG_WARMUP),
        (warm(1000, 400), WITHOUT_WARMUP, LONG_WARMUP),
        (warm(4000, 0), WITHOUT_WARMUP, None),
        (warm(1000, 0), WITH_AND_WITHOUT, None),
        (warm(1000, 90), WITH_AND_WITHOUT, None),
    ],
)
def test_different_warmups_give_a_reason(curve, curves_of_runs, reason, interval):
    """Also those of learning rates from a log, of which only the logged ones are known."""
    if interval is None:
        runs = [run_with(curve_of_run) for curve_of_run in curves_of_runs]
    else:
        runs = [run_from_lrs(curve_of_run, interval) for curve_of_run in curves_of_runs]
    about_warmup = [text for text in reasons_of(curve, runs) if "warmup" in text]
    check_reasons(about_warmup, [] if reason is None else [reason])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (StagedCurve([(1000,)], start=1.0), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=2), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=90, warmup_shape="cosine"), CURVE),
        (StagedCurve([(50, 1.0), (450, 0.0), (50, 1.0), (450, 0.0)]), CURVE),  # restarts
    ],
)
def test_equal_warmups_give_no_reason(first, second):
    for curve, curve_of_run in ((first, second), (second, first)):
        reasons = reasons_of(curve, [run_with(curve_of_run)])
        assert "warmup" not in " ".join(reasons)


# Plateaus.


def lacks_plateau(curve, runs):
    return any(NO_PLATEAU in reason for reason in reasons_of(curve, runs))


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
    assert lacks_plateau(longer_cosine, runs) == (not has_plateau)
    assert lacks_plateau(longer_fall_below_half, runs) == (not has_plateau)
    assert not lacks_plateau(longer_fall_above_half, runs)
    assert not lacks_plateau(as_long, runs)
