"""`python -m plateau_jax`: look at a curve from the shell."""

import argparse
import csv
import json
import os
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plateau_jax import checks
from plateau_jax.plateau_curve import PlateauCurve


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plateau_jax",
        description="Print the segments of a learning-rate curve; draw it or write its values.",
    )
    parser.add_argument("total_steps", metavar="TOTAL", type=int, help="steps of the curve, warmup included")
    parser.add_argument("--warmup", metavar="N", type=int, default=0, help="warmup steps")
    parser.add_argument(
        "--plateau",
        metavar=("START", "DURATION"),
        nargs=2,
        type=float,
        action="append",
        default=[],
        help="a plateau, in percent of the steps after the warmup; may be repeated",
    )
    parser.add_argument(
        "--min-lr-ratio",
        metavar="R",
        type=float,
        default=0.0,
        help="final rate as a share of the peak, 0 to 1 (0)",
    )
    parser.add_argument("--peak", metavar="P", type=float, default=1.0, help="peak learning rate (1)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (needs matplotlib)")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write step, learning_rate for every step")
    parser.add_argument("--json", action="store_true", help="print the curve's arguments as JSON instead")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        curve = PlateauCurve(
            options.total_steps,
            warmup_steps=options.warmup,
            plateaus=options.plateau,
            min_lr_ratio=options.min_lr_ratio,
        )
        peak = checks.peak("peak", options.peak)
    except ValueError as error:
        parser.error(str(error))
    try:
        if options.plot:
            _write_picture(curve, peak, options.plot)
        if options.csv:
            _write_csv(curve, peak, options.csv)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(curve.to_dict()) if options.json else curve.describe())
    return 0


def _write_picture(curve: PlateauCurve, peak: np.float32, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise checks.missing("--plot", error, "plot") from None

    from plateau_jax.plotting import plot

    figure: Any = Figure(figsize=(8, 4), layout="constrained")
    plot(curve, peak_value=float(peak), ax=figure.subplots())
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    with _whole(path) as beside, beside.open("wb") as file:
        figure.savefig(file, dpi=120, format=path.suffix.removeprefix("."))


def _write_csv(curve: PlateauCurve, peak: np.float32, path: Path) -> None:
    chunk = 1 << 16
    with _whole(path) as beside, beside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "learning_rate"])
        for first in range(0, curve.total_steps + 1, chunk):
            steps = range(first, min(first + chunk, curve.total_steps + 1))
            writer.writerows(zip(steps, map(str, peak * curve(steps)), strict=True))


@contextmanager
def _whole(path: Path) -> Generator[Path]:
    """Where to write, so that the file appears, or replaces what was there, when it is whole."""
    # Pipes and devices can only be written to, and so can the file that /dev/stdout stands for.
    streams = "/dev", "/dev/fd", "/proc/self/fd"
    if (path.exists() and not path.is_file()) or str(path.absolute().parent) in streams:
        yield path
        return
    target = path.resolve()  # a link stays a link
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {target.parent}")
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target.exists():
            target.open("ab").close()  # refused, where the file may not be written
            beside.touch()
            shutil.copymode(target, beside)
        yield beside
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _stop(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
