"""The command line: its options and their defaults."""

import argparse
from collections.abc import Iterator

from plateau_jax.tools.command_line.option_parser import command_line_parser

NAME = "python -m plateau_jax"


def command_line() -> Iterator[str]:
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
