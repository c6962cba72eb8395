"""`python -m plateau_jax`: print, plot, export, compare and design curves from the shell."""

import argparse
import csv
import inspect
import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from plateau_jax import plots
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.serialization import parse_numbers
from plateau_jax.curves.staged_curve import StagedCurve
from plateau_jax.drawing.sampling import legend_labels
from plateau_jax.drawing.tables import segments_as_text
from plateau_jax.forecasts.best_peaks import best_peak_of_fits, fit_peaks
from plateau_jax.forecasts.logged_lrs import UnclearLogError
from plateau_jax.forecasts.loss_comparison import LossComparison
from plateau_jax.forecasts.loss_fitting import fit_losses
from plateau_jax.input_files import describe_logs, read_curve, read_runs
from plateau_jax.option_parser import command_line_parser
from plateau_jax.output_files import is_stream, writing
from plateau_jax.theory import comparison
from plateau_jax.theory.comparison import compare
from plateau_jax.validation import checks
from plateau_jax.validation.lazy_names import missing_package_error


def main(arguments: list[str] | None = None) -> int:
    parser = command_line_parser()
    options = parser.parse_args(arguments)
    try:
        if sys.stdout is None:
            raise ValueError("standard output is closed")
        if options.design:
            _serve_design_page(options)
            return 0
        if options.port is not None or options.no_browser:
            raise ValueError(f"{'--no-browser' if options.port is None else '--port'} requires --design")
        curves = _build_curves(options)
        peak = checks.peak("peak", 1.0 if options.peak is None else options.peak)
        if len(curves) > 1 and (options.csv is not None or options.json):
            raise ValueError(
                f"{'--json' if options.csv is None else '--csv'} takes one curve, not {len(curves)}"
            )
        if options.best_peak and options.peak is not None:
            raise ValueError("--best-peak finds the peak, and reads those of the logs: leave --peak out")
        if options.best_peak and not options.fit:
            raise ValueError("--best-peak requires --fit LOG, for runs at three peaks or more")
        if options.fit and not (options.compare or options.best_peak):
            raise ValueError("--fit requires --compare, or --best-peak")
        if options.compare and not options.fit and len(curves) < 2:
            raise ValueError("--compare takes at least two curves: repeat --from FILE")
        if options.compare and not peak:
            raise ValueError("--compare takes a --peak above 0: the best peak of the first curve")
        _check_outputs(options)
        best_peaks, notes = _find_best_peaks(options, curves) if options.best_peak else ([], [])
        read_from, forecasts = [], None
        if options.fit and not options.best_peak:
            read_from, forecasts = _forecast(options, curves)
        comparison_table = compare(*curves) if options.compare and not options.fit else None
        if options.plot is not None:
            _write_picture(curves, peak, options.plot)
        if options.csv not in (None, "-"):
            _write_csv(curves[0], peak, Path(options.csv))
    except (ModuleNotFoundError, OSError, TypeError, ValueError) as error:
        parser.exit(2, _encodable(f"{parser.prog}: error: {error}\n", sys.stderr))
    for note in notes:
        _print_note(note)
    if options.csv == "-":
        _write_values(curves[0], peak, sys.stdout)
    elif options.json:
        print(json.dumps(curves[0].to_dict()))
    elif best_peaks:
        print(_encodable("\n".join(best_peaks), sys.stdout))
    elif forecasts:
        print(_encodable("\n".join(read_from), sys.stdout))
        names = tuple(_encodable(name, sys.stdout) for name in forecasts.names)
        print(_encodable(str(replace(forecasts, names=names)), sys.stdout))
    elif comparison_table:
        # Replacing a character may lengthen a name, so do it before the columns are aligned.
        names = tuple(_encodable(name, sys.stdout) for name in comparison_table.names)
        print(comparison.as_text(replace(comparison_table, names=names), options.peak))
    else:
        table_peak = None if options.peak is None else peak
        tables = "\n\n".join(segments_as_text(curve.rows, table_peak) for curve in curves)
        print(_encodable(tables, sys.stdout))
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    """Reject two options that print something."""
    printing = {
        "--csv -": options.csv == "-",
        "--json": options.json,
        "--compare": options.compare,
        "--best-peak": options.best_peak,
    }
    first, second, *_ = *(name for name, is_given in printing.items() if is_given), "", ""
    if second:
        raise ValueError(f"{first} and {second} both write to standard output: give one of them")


def _build_curves(options: argparse.Namespace) -> list[Curve]:
    described = _described(options)
    if options.files and described and not (options.compare or options.best_peak or options.design):
        raise ValueError(f"--from takes a curve as it is, without {', '.join(described)}")
    curves = [_describe_curve(described)] if described or not options.files else []
    curves += [read_curve(file) for file in options.files]
    if options.cooldown:
        curves = [curve.cooldown(*options.cooldown) for curve in curves]
    return curves


def _described(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the curve that the command line describes; empty if it describes none."""
    names = *inspect.signature(PlateauCurve).parameters, "stages", "start"
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _describe_curve(described: Mapping[str, Any]) -> Curve:
    if "stages" in described:
        if others := [name for name in described if name not in ("total_steps", "stages", "start")]:
            raise ValueError(f"--stage describes the whole curve, without {', '.join(others)}")
        return StagedCurve(**{**described, "stages": parse_numbers(described["stages"])})
    if "start" in described:
        raise ValueError("--start requires --stage")
    if "total_steps" not in described:
        raise ValueError("the following arguments are required: TOTAL, or --from FILE, or --stage STEPS")
    return PlateauCurve(**described)


def _serve_design_page(options: argparse.Namespace) -> None:
    """Serve the design page, starting with the curves of the command line, if any."""
    # Imported here, because the HTTP modules would double the start-up time of every other command.
    from plateau_jax.design import answers, server

    output = next(
        (name for name in ("plot", "csv", "json", "compare", "best_peak", "fit") if getattr(options, name)),
        None,
    )
    if output:
        raise ValueError(f"--design opens a page: leave --{output.replace('_', '-')} out")
    peak = 3e-4 if options.peak is None else options.peak
    checks.peak("peak", peak)
    described = _described(options)
    curves = _build_curves(options) if described or options.files or options.cooldown else []
    names = [*(["Curve"] if described else []), *(Path(file).stem for file in options.files)]
    initial = answers.initial_curves(list(zip(names, curves, strict=True)), peak)
    port = server.PORT if options.port is None else options.port
    server.serve(initial, port, browser=not options.no_browser)


def _forecast(options: argparse.Namespace, curves: list[Curve]) -> tuple[list[str], LossComparison]:
    """Forecast the losses of the curves from the logs of --fit; return a line about each, and the table."""
    runs = read_runs(options.fit, options.peak)
    names = legend_labels([curve._to_draw() for curve in curves])
    comparison = fit_losses(runs).compare(dict(zip(names, curves, strict=True)), options.peak)
    return describe_logs(options.fit, runs), comparison


def _find_best_peaks(options: argparse.Namespace, curves: list[Curve]) -> tuple[list[str], list[str]]:
    """Return a line about the best peak of each curve, and notes on the logs and the forecasts."""
    try:
        runs = read_runs(options.fit, None)
    except UnclearLogError as error:
        if error.columns:
            raise
        raise ValueError(
            f"{error.problem}: with --best-peak a log needs its learning rates, from the start to the last "
            "loss, or some of them and the run's curve, as in --fit LOG CURVE"
        ) from None
    fits = fit_peaks(runs)
    lines, notes = list[str](), describe_logs(options.fit, runs)
    for name, curve in zip(legend_labels([curve._to_draw() for curve in curves]), curves, strict=True):
        best = best_peak_of_fits(fits, curve)
        lines.append(f"{name}: {best}" if len(curves) > 1 else str(best))
        if best.forecast.reasons:
            reasons = ", and ".join(best.forecast.reasons)
            notes.append(f"python -m plateau_jax: less certain for {name}: {reasons}")
    return lines, notes


def _print_note(note: str) -> None:
    if sys.stderr is not None:  # print would write to standard output
        print(_encodable(note, sys.stderr), file=sys.stderr)


def _write_picture(curves: list[Curve], peak: np.float32, path: Path) -> None:
    try:
        from matplotlib.figure import Figure  # an optional dependency
    except ModuleNotFoundError as error:
        raise missing_package_error("--plot", error, "plot") from None

    if str(path) == "-":
        raise ValueError("--plot - is not possible: give a file, as in --plot curve.png")
    figure: Any = Figure(figsize=(8, 4), layout="constrained")
    plots.plot(curves, peak_value=float(peak), ax=figure.subplots())
    path = path if path.suffix or is_stream(path) else path.with_name(f"{path.name}.png")
    with writing(path):
        picture = BytesIO()
        figure.savefig(picture, dpi=120, format=path.suffix.removeprefix(".") or "png")
        path.write_bytes(picture.getvalue())


def _write_csv(curve: Curve, peak: np.float32, path: Path) -> None:
    with writing(path), path.open("w", newline="") as file:
        _write_values(curve, peak, file)


def _write_values(curve: Curve, peak: np.float32, file: TextIO) -> None:
    chunk = 1 << 16  # steps; a curve may have 2**31, too many for one array
    writer = csv.writer(file)
    writer.writerow(["step", "learning_rate"])
    for first in range(0, curve.total_steps + 1, chunk):
        steps = range(first, min(first + chunk, curve.total_steps + 1))
        writer.writerows(zip(steps, map(str, peak * curve(steps)), strict=True))


_IN_ASCII = str.maketrans("–×“”", '-x""')


def _encodable(text: str, stream: TextIO | None) -> str:
    """Replace characters that the stream's encoding lacks; the columns stay aligned."""
    try:
        text.encode((stream and stream.encoding) or "utf-8")
    except UnicodeEncodeError:
        return text.replace("  …", "...").replace("…", "...").translate(_IN_ASCII)
    return text


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Format a warning without a source line: in a shell, there is none of the user's."""
    return f"python -m plateau_jax: warning: {_encodable(str(message), sys.stderr)}\n"


if __name__ == "__main__":
    warnings.formatwarning = _format_warning
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        # In `… | head`, end silently like other commands, rather than with a BrokenPipeError.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except OSError as error:  # such as a full disk
        _print_note(f"python -m plateau_jax: error: {error.strerror}")
        os._exit(2)  # sys.exit would flush standard output again, and fail again
    except KeyboardInterrupt:
        sys.exit(130)
