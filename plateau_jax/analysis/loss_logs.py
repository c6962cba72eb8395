"""Read steps, losses and learning rates from a log; see `LossRun.read`."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from plateau_jax.analysis.log_columns import Table
from plateau_jax.analysis.log_files import checked_rows, read_file
from plateau_jax.analysis.logged_lrs import (
    GIVE_CURVE,
    GIVE_PEAK,
    UnclearLogError,
    check_lrs,
    interpolate_lrs,
    peak_of_lrs,
    warn_if_lrs_differ,
)
from plateau_jax.analysis.logged_rows import finite_losses, later_rows
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.validation.messages import Keyword, Message, choices


class Log(NamedTuple):
    """The arguments of a `LossRun`, and the columns that they were read from."""

    curve: Curve
    peak_value: float
    steps: list[int]
    losses: list[float]
    columns: dict[str, str]
    name: str


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
    table.check_steps(step)
    loss = table.find_loss(step) if loss is None else table.find_named("loss", loss)
    lr_is_used = curve is None or peak_value is None
    try:
        lr_column = table.find_lr() if lr is None else table.find_named("lr", lr)
        rows = table.read_rows(step, loss, lr_column)
    except ValueError:
        if lr_is_used or lr is not None:
            raise
        # There are several columns, or cells without a number, that nobody asked for.
        lr_column = None
        rows = table.read_rows(step, loss, None)
    rows = later_rows(rows, table.name)
    losses = finite_losses(rows, table.name, loss)
    if not losses:
        raise ValueError(Message(f"{table.name} has no row with both ", *choices((step, loss), " and ")))
    lrs = [(row.step, row.lr) for row in rows if row.lr is not None]
    if lr_is_used:
        check_lrs(lrs, table.name)
        if not any(value > 0 for _, value in lrs):
            problem, argument = f"{table.name} has no learning rates", "peak_value"
            advice = GIVE_PEAK
            if curve is None:
                argument, advice = "curve", GIVE_CURVE
            if lr_column is None:
                columns = "; ", table.list_columns(), ": name one with ", Keyword("lr"), " if it has them"
                advice = Message(advice, *columns)
            raise UnclearLogError(problem, advice, argument)
    if curve is None:
        curve, peak_value = interpolate_lrs(lrs, losses[-1][0], table.name)
    else:
        peak_value = peak_of_lrs(lrs, curve, table.name) if peak_value is None else peak_value
        warn_if_lrs_differ(lrs, curve, peak_value, table.name)
    columns = {"step": step, "loss": loss}
    if lr_is_used and lr_column is not None:
        columns["lr"] = lr_column
    steps, values = zip(*losses, strict=True)
    return Log(curve, peak_value, list(steps), list(values), columns, table.name)
