"""Input files of the command line: saved curves, and logs of runs."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from plateau_jax.curves.curve import Curve
from plateau_jax.forecasts.loss_run import LossRun


def read_curve(file: str) -> Curve:
    """Read a curve that `to_dict` wrote. The file "-" is standard input."""
    text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return Curve.from_dict(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is not a curve: {error}") from None


def read_runs(fits: Iterable[Sequence[str]], peak: float | None) -> list[LossRun]:
    """Read the run of each --fit: a log, and the file of its curve if there is one."""
    runs: list[LossRun] = []
    for file, *curve_files in fits:
        if len(curve_files) > 1:
            raise ValueError(
                f"--fit takes a log and its curve, not {len(curve_files)} curves: repeat --fit for each log"
            )
        if curve_files:
            runs.append(LossRun.read(file, read_curve(curve_files[0]), peak))
        else:
            runs.append(LossRun.read(file))
    return runs


def describe_logs(fits: Iterable[Sequence[str]], runs: Iterable[LossRun]) -> list[str]:
    """Return a line about each log that says what was read from it."""
    return [
        f"{file}: {len(run.steps)} logged losses, columns "
        + ", ".join(f"{argument} = {column!r}" for argument, column in run._columns.items())
        for (file, *_), run in zip(fits, runs, strict=True)
    ]
