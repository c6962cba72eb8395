"""Logs that the user opens: each becomes a run, which the page keeps and sends with its questions."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import parse_object, record_warnings, typed_peak
from plateau_jax.forecasts.logged_lrs import UnclearLogError
from plateau_jax.forecasts.logs import base_name, parse_rows, read_log
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.validation.curve_warning import suppress_warnings


def open_log(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"name", "text", "curve", "peak", "columns", "unit"} -> {"run", "loss", "columns", "advice", …}.

    `run` is JSON text for `read_run`. The answer also has `largest_lr`, the run's largest learning rate.
    Without a curve, the learning rates of the log are used. `columns` names those of `step`, `loss` and `lr`
    that the user chose, and in the answer those that were read. `unit` is that of the steps: see
    `_in_updates`. Or -> {"fault", "argument", "columns"}: the columns to choose from, if an argument is
    unclear.
    """
    name, columns = str(question.get("name")), dict(cast("Mapping[str, Any]", question.get("columns", {})))
    curve = None if question.get("curve") is None else Curve.from_dict(question["curve"])
    chosen: dict[str, str | None] = {argument: columns.get(argument) for argument in ("step", "loss", "lr")}
    try:
        peak = None if curve is None or question.get("peak") is None else typed_peak(question["peak"])
        with record_warnings() as advice:
            rows = parse_rows(str(question.get("text")), name)
            rows = _in_updates(rows, name, chosen["step"], dict(question.get("unit", {})))
            run = LossRun._from_log(*read_log(rows, curve, peak, name=name, **chosen))
    except UnclearLogError as error:
        return {"fault": error.problem, "argument": error.argument, "columns": error.columns}
    except (TypeError, ValueError) as error:
        return {"fault": str(error), "argument": None, "columns": ()}
    columns = list(run._columns.values())
    description = {
        "name": name,
        "columns": columns,
        "curve": run.curve.to_dict(),
        "peak": run.peak_value,
        "steps": run.steps.tolist(),
        "losses": run.losses.tolist(),
    }
    return {
        "run": json.dumps(description),
        "largest_lr": run._largest_learning_rate(),
        "loss": base_name(run._columns["loss"]),
        "columns": columns,
        "advice": advice,
    }


@lru_cache(16)
def read_run(text: str) -> tuple[str, LossRun]:
    """Return the name and the run of an `open_log`, which are kept: a curve of many stages takes seconds."""
    run = parse_object(text)
    names = ("step", "loss", "lr")
    columns: dict[str, str] = dict(zip(names, run.get("columns", names[:2]), strict=False))
    with suppress_warnings():
        curve = Curve.from_dict(run.get("curve", {}))
        arguments = typed_peak(run.get("peak")), run.get("steps", ()), run.get("losses", ())
        name = str(run.get("name"))
        return name, LossRun._from_log(name, columns, (curve, *arguments))


def _in_updates(
    rows: Sequence[Mapping[str, Any]], name: str, step: str | None, unit: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a log with the column `step` in updates.

    `unit` is {"name", "size"}, with the name "updates", "samples" (or tokens; `size` of them in an update),
    or "epochs" (of `size` updates), 1 after the first; "epochs from 0" are 0 then.
    """
    kind, size = unit.get("name", "updates"), unit.get("size")
    if kind == "updates":
        return rows
    if not isinstance(size, int | float) or size <= 0:
        what = "samples or tokens per update" if kind == "samples" else "updates per epoch"
        raise UnclearLogError(f"{name}: the number of {what} must be positive", "unit")
    if step is None:
        columns = list(dict.fromkeys(column for row in rows for column in row))
        raise UnclearLogError(f"{name} has steps that are not updates", "step", columns)

    def updates(cell: Any) -> Any:
        try:
            number = float(cell)
            return round(number / size if kind == "samples" else (number + (kind == "epochs from 0")) * size)
        except (TypeError, ValueError, OverflowError):
            return cell  # it is missing, or `read_log` rejects it

    return [{**row, step: updates(row.get(step))} for row in rows]
