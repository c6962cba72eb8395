"""Runs whose losses follow the law of the loss, with some noise; and logs, also on the design page."""

import csv
import json
from typing import Any

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  (pandas has none)

from plateau_jax import Curve, LossRun, PlateauCurve
from plateau_jax.design.forecasts import open_log
from plateau_jax.forecasts.loss_law import schedule_sums
from plateau_jax.validation.curve_warning import suppress_warnings


def losses_of(curve: Curve, steps: Any, noise: float = 5e-4, exponent: float = 0.5, seed: int = 0) -> Any:
    """Return losses that fall by 1 nat and more; those of a warmup are at most 12."""
    progress, sums = schedule_sums(curve, 1.0, np.asarray(steps))
    errors = noise * np.random.default_rng(seed).standard_normal(len(steps))
    with np.errstate(divide="ignore"):  # a warmup begins with a sum of 0
        losses = 2 + (progress / 200) ** -exponent + 0.1 * sums**0.8
    return np.minimum(losses, 12) * (1 + errors)


def logged(curve: Curve, every: int = 20, noise: float = 5e-4, peak: float = 1e-3, **law: Any) -> LossRun:
    """Return a run that was logged every so many steps."""
    steps = np.arange(every, curve.total_steps + 1, every)
    with suppress_warnings():
        return LossRun(curve, peak, steps, losses_of(curve, steps, noise, **law))


def changed(run: LossRun, losses: Any, kept: Any = slice(None)) -> LossRun:
    """Return a run with other losses, or a part of them."""
    return LossRun(run.curve, run.peak_value, run.steps[kept], np.asarray(losses)[kept])


def rows_of(**columns: Any) -> list[dict[str, Any]]:
    """Return the rows of a log with these columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def csv_of(**columns: Any) -> str:
    """Return the text of a log with these columns in CSV, with quoted cells."""
    return pd.DataFrame(columns).to_csv(index=False, quoting=csv.QUOTE_ALL)


PEAK = 1e-3
CURVE = PlateauCurve(1000, warmup_steps=50)
STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + 2 * STEPS**-0.5 + 0.1 * CURVE(STEPS)
RUN = LossRun(CURVE, PEAK, STEPS, LOSSES)


def opened(
    text: str, curve: Curve | None = CURVE, peak: float | None = PEAK, **columns: str
) -> dict[str, Any]:
    """Return the answer of the page about a log and what the user chose."""
    question = {"curve": curve and curve.to_dict(), "peak": peak, "columns": columns}
    return json.loads(json.dumps(open_log({"name": "log.csv", "text": text, **question})))
