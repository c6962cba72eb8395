"""Why a forecast is less certain: for each reason, curves on both sides of its limit."""

import itertools
from typing import Any

import numpy as np
import pytest
from support.forecasts.logs import logged

from plateau_jax import BatchPlan, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.forecast_reasons import list_reasons
from plateau_jax.forecasts.loss_interval import ForecastTerms

CURVE = PlateauCurve(1000, warmup_steps=50)
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(logged(CURVE))

LONG, SHORT = "times as many steps as the longest run", "curves this short came out too high"
NO_STAGE = "from runs without a stage at constant learning rate, longer ones came out up to 2 % worse"
NO_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
LONG_WARMUP = "no run had so long a warmup: the loss may be lower by tenths of a nat"


def warm(total: int, warmup: int) -> PlateauCurve:
    return PlateauCurve(total, warmup_steps=warmup)


@pytest.mark.parametrize(
    ("curve", "peak", "reasons"),
    [
        (CURVE, 1e-3, []),
        (CURVE, 1.5e-3, ["its peak is 1.5 times that of the nearest run"]),
        (CURVE, 0.8e-3, ["its peak is 0.8 times that of the nearest run"]),
        (warm(2049, 50), 1e-3, [NO_STAGE]),
        (warm(3000, 50), 1e-3, [f"it has 3 {LONG}", NO_STAGE]),
        (PlateauCurve(3000), 1e-3, [f"it has 3 {LONG}", NO_WARMUP, NO_STAGE]),
        (warm(300, 50), 1e-3, []),
        (warm(299, 50), 1e-3, [f"it has 0.299 {LONG}: {SHORT}"]),
        (BatchPlan([(0, 32)]).scale(CURVE, 32, reference=32), 1e-3,
         ["a curve follows a batch plan, but the law counts every step as one update of the same batch"]),
    ],
)  # fmt: skip
def test_lengths_and_peaks_give_reasons(curve, peak, reasons) -> None:
    assert FIT.predict(curve, peak).reasons == tuple(reasons)


def reasons_of(curve: Any, runs: list[LossRun], by_start: float = 0.0, by_run: float = 0.0) -> Any:
    """Return the reasons for a loss of 2 that changes by so much without the first fifth or a run."""
    terms = ForecastTerms(*map(np.array, (2.0, 0.0, 0.0, 0.0, by_start, [0.0, by_run])))
    return list_reasons(curve, 1.0, terms, runs)


@pytest.mark.parametrize("sign", [-1, 1])
def test_fits_that_contradict_each_other_give_a_reason(sign) -> None:
    runs = [LossRun(CURVE, 1.0, [1000], [3.0])]
    assert reasons_of(CURVE, runs, sign * 0.00999, sign * 0.01199) == ()
    (reason,) = reasons_of(CURVE, runs, sign * 0.0101)
    assert reason == "it changes by 0.01 nats if the first fifth is left out"
    assert reasons_of(CURVE, runs, 0, sign * 0.0121) == ("a fit to one run alone gives a different forecast",)


def test_peak_is_compared_with_the_nearest_run() -> None:
    runs = [LossRun(CURVE, peak, [1000], [3.0]) for peak in (0.9, 2.0)]
    assert reasons_of(CURVE, runs) == ("its peak is 1.11 times that of the nearest run",)


def logged_every(interval: int, curve: PlateauCurve) -> LossRun:
    """Return a run as a log of its learning rates gives it."""
    steps = range(interval, curve.total_steps + 1, interval)
    rows = [{"step": step, "loss": 3.0, "lr": curve(step)} for step in steps]
    if curve.warmup_steps:
        rows.insert(0, {"step": 0, "lr": curve(0)})
    return LossRun.read(rows)


RUNS_90 = [warm(1000, 90)]
# Curves of runs, the curve to forecast, and the reason.
WARMUPS: list[tuple[list[PlateauCurve], PlateauCurve, str | None]] = [
    (RUNS_90, warm(1000, 0), NO_WARMUP),
    (RUNS_90, warm(1000, 12), NO_WARMUP),
    ([warm(1000, 90), warm(2000, 200)], warm(2000, 12), NO_WARMUP),
    ([warm(1000, 90), warm(2000, 200)], warm(2000, 40), None),
    *((RUNS_90, warm(1000, warmup), None) for warmup in (60, 90, 240)),
    *((RUNS_90, warm(300, warmup), None) for warmup in (27, 90)),  # the same percentage, or number of steps
    *((RUNS_90, warm(4000, warmup), None) for warmup in (90, 360)),
    (RUNS_90, warm(1000, 400), LONG_WARMUP),
    ([warm(1000, 0)], warm(1000, 400), LONG_WARMUP),
    ([warm(1000, 0)], warm(1000, 0), None),
    ([warm(1000, 0)], warm(4000, 0), None),
    *(([warm(1000, 0), warm(1000, 90)], warm(1000, warmup), None) for warmup in (0, 90)),
]


@pytest.mark.parametrize("interval", [None, 1, 40])
@pytest.mark.parametrize(("run_curves", "curve", "reason"), WARMUPS)
def test_different_warmups_give_a_reason(run_curves, curve, reason, interval) -> None:
    """Also those of learning rates from a log, of which only the logged ones are known."""
    if interval is None:
        runs = [LossRun(run_curve, 1.0, [run_curve.total_steps], [3.0]) for run_curve in run_curves]
    else:
        runs = [logged_every(interval, run_curve) for run_curve in run_curves]
    reasons = [text for text in reasons_of(curve, runs) if "warmup" in text]
    assert reasons == [reason] * (reason is not None)


@pytest.mark.parametrize(
    ("curve", "other"),
    [
        (StagedCurve([(1000,)], start=1.0), PlateauCurve(1000)),
        (StagedCurve([(0, 1.0), (1000, 0.0)]), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=2), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=90, warmup_shape="cosine"), CURVE),
        (CURVE.cooldown(500, 100), CURVE),
        (StagedCurve([(50, 1.0), (450, 0.0), (50, 1.0), (450, 0.0)]), CURVE),  # restarts
    ],
)
def test_equal_warmups_give_no_reason(curve, other) -> None:
    for one, another in ((curve, other), (other, curve)):
        run = LossRun(one, 1.0, [one.total_steps], [3.0])
        assert not any("warmup" in text for text in reasons_of(another, [run]))


def logged_cosine(stage: int) -> StagedCurve:
    """Return a cosine as a log of learning rates gives it, with a stage at 0.6 of the peak."""
    lrs = np.sort([*np.cos(np.linspace(0, 1.5, 100)), 0.6])[::-1].tolist()
    lrs.insert(lrs.index(0.6), 0.6)
    return StagedCurve([(stage if (lr, to) == (0.6, 0.6) else 9, to) for lr, to in itertools.pairwise(lrs)])


@pytest.mark.parametrize(
    ("run_curve", "has_stage"),
    [
        (CURVE, False),
        (WSD, True),
        (PlateauCurve(1000, plateaus=[(20, 9.8)]), False),
        (PlateauCurve(1000, plateaus=[(20, 10)]), True),
        (PlateauCurve(1000, plateaus=[(70, 10)]), False),  # below half the peak
        (logged_cosine(90), False),
        (logged_cosine(110), True),
    ],
)
def test_stage_lets_a_fit_forecast_longer_decays(run_curve, has_stage) -> None:
    total = run_curve.total_steps
    runs = [LossRun(run_curve, 1.0, [total], [3.0])]
    for curve, needs_stage in (
        (PlateauCurve(int(1.3 * total)), True),
        (StagedCurve([(50, 1.0), (total,), (50, 0.45)]), True),
        (StagedCurve([(50, 1.0), (total,), (50, 0.55)]), False),
        (PlateauCurve(int(1.05 * total)), False),
    ):
        assert (NO_STAGE in reasons_of(curve, runs)) == (needs_stage and not has_stage)
