"""`python -m plateau_jax`: print, plot, export, compare and design curves from the shell."""

import argparse
import csv
import inspect
import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

import plateau_jax
from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.lazy_names import naming_missing_package
from plateau_jax.tools.command_line.option_parser import command_line_parser
from plateau_jax.tools.configuration import curve_from_options, read_curve_file
from plateau_jax.tools.drawing import plots
from plateau_jax.tools.drawing.segment_table import segment_table
from plateau_jax.tools.export.vectors import vectors_as_json
from plateau_jax.tools.logged_lrs.compare_log import compare_log
from plateau_jax.tools.theory import bounds
from plateau_jax.tools.theory.bounds import compare

_PORT = 8700
"""The port of the design page."""


def main(arguments: list[str] | None = None) -> int:
    parser = command_line_parser()
    options = parser.parse_args(arguments)
    try:
        _check_options(options)
        if options.version:
            print(f"plateau-jax {plateau_jax.__version__}")
            return 0
        if options.design:
            _serve_design_page(options)
            return 0
        curves = _build_curves(options)
        text = _text(options, curves)
        _write_files(options, curves)
        if options.csv == "-":
            _write_values(curves[0], options.peak, sys.stdout)
        elif options.export == "-":
            print(_exported_text(options, curves), end="")
        else:
            print(text)
        sys.stdout.flush()
    # Matplotlib raises RuntimeError for a format that needs TeX.
    except (ModuleNotFoundError, OSError, RuntimeError, TypeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Reject an option without effect, a closed stream, and a wrong peak."""
    has_log = options.log is not None
    reads_input = options.log == "-" or "-" in options.files
    problems = {
        "standard input is closed": reads_input and cast(TextIO | None, sys.stdin) is None,
        # A server may run without one.
        "standard output is closed": not options.design and sys.__stdout__ is None,
        "--log requires --peak": has_log and options.peak is None,
        "--step-column requires --log": options.step_column is not None and not has_log,
        "--lr-column requires --log": options.lr_column is not None and not has_log,
        "--port requires --design": options.port is not None and not options.design,
        "--no-browser requires --design": options.no_browser and not options.design,
        "--json prints a curve, which has no peak: leave --peak out": (
            options.json and options.peak is not None
        ),
        "--design opens a page: leave --plot out": options.design and options.plot is not None,
        "--plot writes a picture: give a file name, not -": options.plot == Path("-"),
        "--wsd builds the stages: leave --stage out": options.wsd and options.stages,
        f"--export {options.export} must end in .py or .json; for values, use --csv": (
            options.export is not None
            and options.export != "-"
            and Path(options.export).suffix.lower() not in (".py", ".json")
        ),
    }
    _reject(problems)
    if options.peak is not None:
        checks.peak("peak", options.peak)


def _reject(problems: Mapping[str, Any]) -> None:
    """Raise an error with the first problem that is present."""
    for problem, is_present in problems.items():
        if is_present:
            raise ValueError(problem)


def _serve_design_page(options: argparse.Namespace) -> None:
    """Serve the design page, starting with the curves of the command line, if any."""
    # Imported here, because the HTTP modules would double the start-up time of every other command.
    from plateau_jax.tools.design import answers, server

    arguments = _curve_arguments(options)
    curves: list[Curve] = []
    if arguments or options.files or options.cooldown:
        curves = _build_curves(options)
    names = [Path(file).stem for file in options.files]
    if arguments:
        names.insert(0, "Curve")
    peak = 3e-4 if options.peak is None else options.peak
    initial = answers.initial_curves(list(zip(names, curves, strict=True)), peak)
    port = _PORT if options.port is None else options.port
    server.serve(initial, port, browser=not options.no_browser)


def _build_curves(options: argparse.Namespace) -> list[Curve]:
    """Return the curve that the options describe, if any, and those of --from."""
    arguments = _curve_arguments(options)
    has_length = "total_steps" in arguments or "stages" in arguments
    takes_several = options.compare or options.design
    problems = {
        "no curve: give TOTAL, --stage STEPS or --from FILE": not has_length and not options.files,
        "--from takes a curve as it is: leave out TOTAL and the options of a curve": (
            arguments and options.files and not takes_several
        ),
    }
    _reject(problems)

    curves: list[Curve] = []
    if arguments:
        curves.append(curve_from_options(arguments))
    curves.extend(_read_curve(file) for file in options.files)
    if options.cooldown:
        at, steps = options.cooldown
        curves = [curve.cooldown(at, steps) for curve in curves]
    if len(curves) > 1:
        _reject_options_for_one_curve(options, len(curves))
    return curves


def _reject_options_for_one_curve(options: argparse.Namespace, num_curves: int) -> None:
    exports_python = options.export is not None and _is_python_file(options.export)
    takes_one_curve = {
        "--csv": options.csv is not None,
        "--json": options.json,
        f"--export {options.export}": exports_python,
        "--log": options.log is not None,
    }
    for option, is_given in takes_one_curve.items():
        if is_given:
            raise ValueError(f"{option} takes one curve, not {num_curves}")


def _is_python_file(file: str) -> bool:
    """Return True if --export writes a Python file, False if it writes test vectors."""
    return Path(file).suffix.lower() != ".json"


def _curve_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the curve that the options describe; empty if there is none."""
    arguments: dict[str, Any] = {}
    parameters = inspect.signature(PlateauCurve).parameters
    for name in (*parameters, "wsd", "decay_steps", "stages", "start"):
        value = getattr(options, name)
        if value is not None:
            arguments[name] = value
    return arguments


def _read_curve(file: str) -> Curve:
    """Read the mapping that describes a curve. The file "-" is standard input."""
    content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return read_curve_file(file, content)
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None


def _text(options: argparse.Namespace, curves: list[Curve]) -> str:
    """Return what to print about the curves: JSON, a comparison, or their segments."""
    if options.json:
        return json.dumps(curves[0].to_dict())
    if options.log is not None:
        log = sys.stdin.buffer if options.log == "-" else options.log
        columns = {"step": options.step_column, "lr": options.lr_column}
        return str(compare_log(log, curves[0], options.peak, **columns))
    if options.compare:
        table = compare(*curves)
        if options.peak is None:
            return str(table)
        return bounds.as_text(table, options.peak)
    peak = None
    if options.peak is not None:
        peak = np.float32(options.peak)
    return "\n\n".join(segment_table(curve.segments, peak) for curve in curves)


def _write_files(options: argparse.Namespace, curves: list[Curve]) -> None:
    """Write the files that the options name. Notes go to standard error: the output may be data."""
    if options.plot is not None:
        _write_picture(curves, options.plot, options.peak)
    if options.csv is not None and options.csv != "-":
        with _replacing(Path(options.csv)) as temporary, temporary.open("w", newline="") as file:
            _write_values(curves[0], options.peak, file)
        print(f"wrote {options.csv}", file=sys.stderr)
    if options.export is not None and options.export != "-":
        text = _exported_text(options, curves)
        with _replacing(Path(options.export)) as temporary:
            temporary.write_text(text, encoding="ascii")
        print(f"wrote {options.export}", file=sys.stderr)


def _exported_text(options: argparse.Namespace, curves: list[Curve]) -> str:
    """Return the text of the file that --export names."""
    if _is_python_file(options.export):
        return curves[0].to_source(options.peak)
    peak = 1.0
    if options.peak is not None:
        peak = float(checks.peak("peak", options.peak))
    return vectors_as_json(curves, peak)


def _write_picture(curves: list[Curve], path: Path, peak: float | None) -> None:
    with naming_missing_package("--plot", "plot"):
        from matplotlib.figure import Figure  # an optional dependency

    if peak is None:
        peak = 1.0
    if not path.suffix:
        path = path.with_suffix(".png")
    figure: Any = Figure(figsize=(8, 4), layout="constrained")
    plots.plot(curves, peak_value=peak, ax=figure.subplots())
    with _replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
    print(f"wrote {path}", file=sys.stderr)


@contextmanager
def _replacing(path: Path) -> Generator[Path]:
    """Yield the path of a temporary file next to a file; rename it at the end.

    An error, an interrupt or a full disk leaves the file as it was.
    """
    # Not for a FIFO, or /dev/stdout, which may be a link to a file.
    if Path("/dev") in path.parents or (path.exists() and not path.is_file()):
        yield path
        return
    target = path.resolve()  # of a link, the file itself
    # With the same suffix, by which matplotlib chooses the format.
    temporary = target.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        error.filename = str(path)  # without a name if the disk is full
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _write_values(curve: Curve, peak: float | None, file: TextIO) -> None:
    """Write the learning rate of every step as CSV."""
    if peak is None:
        peak = 1.0
    chunk = 1 << 16  # steps; a curve may have 2**31, too many for one array
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["step", "learning_rate"])
    for first in range(0, curve.total_steps + 1, chunk):
        steps = range(first, min(first + chunk, curve.total_steps + 1))
        writer.writerows(zip(steps, map(str, curve.learning_rate(steps, peak)), strict=True))
