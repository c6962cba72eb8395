"""The command line: its options, what they print, and the exit status."""

import argparse
import contextlib
import csv
import inspect
import io
import json
import runpy
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.surface.shown import type_of
from support.surface.states import entries

from plateau_jax import PlateauCurve
from plateau_jax.__main__ import main
from plateau_jax.option_parser import command_line_parser

NAME = "python -m plateau_jax"


def command_line() -> Iterator[str]:
    yield from _options()
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        yield from _outcomes()


def _options() -> Iterator[str]:
    parser = command_line_parser()
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            name = ", ".join(action.option_strings) or action.dest
            values = _values_of(action)
            yield f"{NAME} {name}{values} (default: {action.default!r})"


def _values_of(action: argparse.Action) -> str:
    """Return how many values an option takes, and if it may be repeated."""
    values = f" takes {action.nargs or 1}"
    if action.nargs == 0:
        values = ""
    if isinstance(action, argparse._AppendAction):
        values += ", may be repeated"
    return values


COMMANDS = (
    "",
    "8",
    "8 --compare",
    "8 --plot curve.png",
    "8 --plateau 200 10",
    "8 --export schedule.py",
    "8 --export schedule.txt",
    "--help",
    "--unknown",
    "--from curve.json",
    "--from missing.json",
)


def _outcomes() -> Iterator[str]:
    """Yield what commands print and write; tables may change, JSON and CSV may not."""
    Path("curve.json").write_text(json.dumps(PlateauCurve(8).to_dict()), encoding="utf-8")
    for command in COMMANDS:
        yield _outcome(command)
    yield _json("8 --json")
    yield _json("8 --stage 4 1.0 --stage rest --json")
    yield _json("8 --wsd --warmup-steps 2 --decay-steps 3 --json")
    yield _json("--from curve.json --cooldown 4 2 --json")
    yield from _csv("8 --csv -")
    yield from _csv("8 --peak 0.5 --csv -")
    yield from _exported_names("8 --export schedule.py")
    yield from _exported_names("8 --peak 0.5 --export schedule.py")
    yield from _vectors("8 --wsd --warmup-steps 3 --decay-steps 4 --export vectors.json")


def _outcome(arguments: str) -> str:
    """Return the exit status, to which streams the command prints, and the files that it writes."""
    files = set(Path().iterdir())
    status, printed, errors = _run(arguments)
    line = f"{NAME} {arguments}".rstrip() + f" exits {status}"
    if printed:
        line += ", prints to standard output"
    if errors:
        line += ", prints to standard error"
    for path in sorted(set(Path().iterdir()) - files):
        line += f", writes {path}"
    return line


def _json(arguments: str) -> str:
    status, printed, _ = _run(arguments)
    return f"{NAME} {arguments} exits {status}, prints a {type_of(json.loads(printed))}"


def _csv(arguments: str) -> Iterator[str]:
    status, printed, _ = _run(arguments)
    header, *rows = csv.reader(io.StringIO(printed))
    yield f"{NAME} {arguments} exits {status}, prints {len(rows)} rows of {','.join(header)}"
    yield f"{NAME} {arguments} begins with {','.join(rows[0])}"


def _exported_names(arguments: str) -> Iterator[str]:
    """Yield the signatures of the two functions of an exported file."""
    _run(arguments)
    schedule = runpy.run_path("schedule.py")
    for name in ("multiplier", "learning_rate"):
        yield f"{NAME} {arguments} defines {name}{inspect.signature(schedule[name])}"


def _vectors(arguments: str) -> Iterator[str]:
    status, _, _ = _run(arguments)
    yield f"{NAME} {arguments} exits {status}"
    content = json.loads(Path("vectors.json").read_text(encoding="ascii"))
    yield from entries({"vectors.json": [content]})


def _run(arguments: str) -> tuple[Any, str, str]:
    """Run the command in this process; return its status and what it prints."""
    printed = io.StringIO()
    errors = io.StringIO()
    status: Any = None
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            status = main(arguments.split())
        except SystemExit as error:
            status = error.code
    return status, printed.getvalue(), errors.getvalue()
