"""Logs that the user opens: each becomes a run, which the page keeps and sends with its questions."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import parse_object, record_warnings, typed_peak
from plateau_jax.forecasts.logs import UnclearLogError, parse_rows
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.validation.curve_warning import suppress_warnings


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "text", "curve", "peak", "columns"} -> {"run", "largest_lr", "advice"}.

    `run` is JSON text for `read_run`, and `largest_lr` the run's largest learning rate. Without a
    curve, the learning rates of the log are used. `columns` has those of `step`, `loss` and `lr`
    that the user chose. Or -> {"fault", "argument", "columns"}: the columns to choose from, if an
    argument is unclear.
    """
    name = str(question.get("name"))
    columns = cast("Mapping[str, Any]", question.get("columns", {}))
    chosen = {argument: columns.get(argument) for argument in ("step", "loss", "lr")}
    curve, peak = None, None
    if question.get("curve") is not None:
        curve = Curve.from_dict(question["curve"])
        peak = typed_peak(question.get("peak"))
    try:
        with record_warnings() as advice:
            rows = parse_rows(str(question.get("text")), name)
            run = LossRun.read(rows, curve, peak, **chosen)
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    description = {
        "name": name,
        "lrs_from": run._lrs_from,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    return {
        "run": json.dumps(description),
        "largest_lr": run._largest_learning_rate(),
        "advice": advice,
    }


@lru_cache(16)
def read_run(text: str) -> tuple[str, LossRun]:
    """Return the name and the run of an `open_log`, which are kept: a curve of many stages takes seconds."""
    run = parse_object(text)
    name = str(run.get("name"))
    with suppress_warnings():
        curve = Curve.from_dict(run.get("curve", {}))
    arguments = curve, typed_peak(run.get("peak")), run.get("steps", ()), run.get("losses", ())
    return name, LossRun._rebuild(*arguments, run.get("lrs_from"))
