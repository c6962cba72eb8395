"""Logs as the user opens them on the design page, and the run that most of them are of."""

import json
from typing import Any

import numpy as np

from plateau_jax import Curve, LossRun, PlateauCurve
from plateau_jax.design.forecasts import open_log

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
