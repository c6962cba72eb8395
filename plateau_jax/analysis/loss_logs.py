"""Read steps, losses and learning rates from a log; see `LossRun.read`."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from plateau_jax.analysis.log_columns import Table, base_name
from plateau_jax.analysis.log_files import checked_rows, read_file
from plateau_jax.analysis.logged_lrs import (
    UnclearLogError,
    checked_lrs,
    interpolate_lrs,
    peak_of_lrs,
    warn_if_lrs_differ,
)
from plateau_jax.curves.curve import Curve, check_curve


class Log(NamedTuple):
    """The arguments of a `LossRun`, and the name of its losses."""

    curve: Curve
    peak_value: float
    steps: list[int]
    losses: list[float]
    loss_name: str


def read_log(
    source: str | PathLike[str] | Iterable[Mapping[str, Any]],
    curve: Curve | None,
    peak_value: float | None,
    *,
    step: str | None,
    loss: str | None,
    lr: str | None,
    name: str = "the log",
) -> Log:
    """Read a log; `name` is that of rows, for messages."""
    if curve is not None:
        check_curve("curve", curve)
    elif peak_value is not None:
        raise ValueError("peak_value= without curve=: give both, or neither")
    if isinstance(source, str | PathLike):
        table = Table(read_file(Path(source)), str(source))
    else:
        table = Table(checked_rows(source), name)
    step = table.find_step() if step is None else table.find_named("step", step)
    loss = table.find_loss() if loss is None else table.find_named("loss", loss)
    readings = table.read_pairs(step, loss)
    if not readings:
        raise ValueError(f"{table.name} has no row with both {step!r} and {loss!r}")
    if curve is not None and peak_value is not None:
        _check_curve(table, step, lr, curve, peak_value)
    else:
        lr = table.find_lr() if lr is None else table.find_named("lr", lr)
        logged = checked_lrs([] if lr is None else table.read_pairs(step, lr), table.name)
        if not any(value > 0 for _, value in logged):
            problem = f"{table.name} has no learning rates"
            if curve is None:
                raise UnclearLogError(problem, ": give curve= and peak_value=", "curve")
            raise UnclearLogError(problem, ": give peak_value=", "peak_value")
        if curve is None:
            curve, peak_value = interpolate_lrs(logged, readings[-1][0], table.name)
        else:
            peak_value = peak_of_lrs(logged, curve)
            _check_curve(table, step, lr, curve, peak_value)
    steps, losses = zip(*readings, strict=True)
    return Log(curve, peak_value, list(steps), list(losses), base_name(loss))


def _check_curve(table: Table, step: str, lr: str | None, curve: Curve, peak_value: float) -> None:
    """Warn if the log has learning rates that are not those of the curve that was given."""
    try:
        column = table.find_lr() if lr is None else table.find_named("lr", lr)
        logged = [] if column is None else table.read_pairs(step, column)
    except ValueError:
        if lr is not None:
            raise
        return  # several columns, or cells without a number: nobody asked for them
    warn_if_lrs_differ(logged, curve, peak_value, table.name)
