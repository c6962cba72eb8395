"""Runs whose losses follow the law of the loss, with some noise; logs."""

import csv
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  (pandas has none)
from numpy.typing import ArrayLike, NDArray
from support.curve_warnings import ignore_curve_warnings

from plateau_jax import Curve, LossRun, PlateauCurve
from plateau_jax.tools.forecasts.loss_law import schedule_sums

LARGEST_LOSS = 12.0
"""In nats; a larger one could be a perplexity."""


def losses_of(
    curve: Curve, steps: ArrayLike, noise: float = 5e-4, exponent: float = 0.5, seed: int = 0
) -> NDArray[np.float64]:
    """Return losses that fall by 1 nat and more; those of a warmup are at most 12."""
    step_array = np.asarray(steps)
    progress, noise_sum = schedule_sums(curve, 1.0, step_array)
    with np.errstate(divide="ignore"):  # a warmup begins with a sum of 0
        decrease = (progress / 200) ** -exponent
    losses = np.minimum(2 + decrease + 0.1 * noise_sum**0.8, LARGEST_LOSS)
    errors = noise * np.random.default_rng(seed).standard_normal(len(step_array))
    return losses * (1 + errors)


def logged(
    curve: Curve,
    every: int = 20,
    noise: float = 5e-4,
    peak: float = 1e-3,
    exponent: float = 0.5,
    seed: int = 0,
) -> LossRun:
    """Return a run that was logged after each `every` steps."""
    steps = np.arange(every, curve.total_steps + 1, every)
    losses = losses_of(curve, steps, noise, exponent, seed)
    with ignore_curve_warnings():
        return LossRun(curve, peak, steps, losses)


def with_losses(run: LossRun, losses: ArrayLike) -> LossRun:
    """Return a run with different losses at the same steps."""
    return LossRun(run.curve, run.peak_value, run.steps, losses)


def kept_losses(run: LossRun, kept: Any) -> LossRun:
    """Return a run with a part of its losses: `kept` is a slice, a mask or an array of indices."""
    return LossRun(run.curve, run.peak_value, run.steps[kept], run.losses[kept])


def rows_of(**columns: Sequence[Any] | NDArray[Any]) -> list[dict[str, Any]]:
    """Return the rows of a log with these columns."""
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def csv_of(**columns: Sequence[Any] | NDArray[Any]) -> str:
    """Return the text of a log with these columns in CSV, with quoted cells."""
    return pd.DataFrame(columns).to_csv(index=False, quoting=csv.QUOTE_ALL)


PEAK = 1e-3
CURVE = PlateauCurve(1000, warmup_steps=50)
STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + 2 * STEPS**-0.5 + 0.1 * CURVE(STEPS)
RUN = LossRun(CURVE, PEAK, STEPS, LOSSES)
