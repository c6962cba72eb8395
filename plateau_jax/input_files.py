"""Input files of the command line: saved curves, and logs of runs. Errors name the option and the file."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import record_warnings
from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.validation.curve_warning import warn

_ADVICE = "; repeat --fit for a second log"


def read_curve(file: str, option: str = "--from") -> Curve:
    """Read a curve that `to_dict` wrote. The file "-" is standard input."""
    if file == "-" and sys.stdin is None:
        raise ValueError(f"{option} -: standard input is closed")
    try:
        arguments = json.loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise ValueError(f"{option} {file}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{option} {file} is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{option} {file} is not JSON: {error}") from None
    try:
        with record_warnings() as advice:
            curve = Curve.from_dict(arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option} {file}: {error}") from None
    for message in advice:
        warn(f"{option} {file}: {message}")
    return curve


def _curve_of_log(file: str) -> Curve:
    try:
        return read_curve(file, "--fit")
    except ValueError as error:
        raise ValueError(f"{error}{_ADVICE if Path(file).is_file() else ''}") from None


def read_runs(fits: Iterable[Sequence[str]], peak: float | None) -> list[LossRun]:
    """Read the run of each --fit: a log, and the file of its curve if there is one."""
    runs: list[LossRun] = []
    for file, *curve_files in fits:
        if len(curve_files) > 1:
            raise ValueError(
                f"--fit takes a log and at most one curve, not {len(curve_files)} curves{_ADVICE}"
            )
        try:
            if curve_files:
                runs.append(LossRun.read(file, _curve_of_log(curve_files[0]), peak))
            else:
                runs.append(LossRun.read(file))
        except OSError as error:
            raise ValueError(f"--fit {file}: {error.strerror}") from None
    return runs


def describe_logs(fits: Iterable[Sequence[str]], runs: Iterable[LossRun]) -> list[str]:
    """Return a line about each log that says what was read from it."""
    return [
        f"{file}: {len(run.steps)} logged losses, columns "
        + ", ".join(f"{argument} = {column!r}" for argument, column in run._columns.items())
        for (file, *_), run in zip(fits, runs, strict=True)
    ]
