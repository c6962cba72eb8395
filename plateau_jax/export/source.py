"""A curve as a Python file without dependencies: `template`, with the table of the curve.

The file leaves out the shapes that the curve lacks, and all that only they use.
"""

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from textwrap import TextWrapper
from typing import Any

from plateau_jax.export import template
from plateau_jax.export.segments import (
    FLAT,
    ExportedSegment,
    hexadecimal,
    steps_to_check,
)
from plateau_jax.numerics.exact import float32_bits

_SELF_CHECK = ""
"""The key of the statement that defines nothing: `if __name__ == "__main__"`."""

_ABOUT = '''\
"""A learning-rate schedule, written by plateau-jax {version}. `multiplier(step)` and
`learning_rate(step, peak)` return the same float32 as this curve, at every step:

{curve}

{unit}Python 3.9 or later, without dependencies. Run this file to check it.
"""
'''


def python_source(
    description: Mapping[str, Any],
    segments: Sequence[ExportedSegment],
    values_at: Callable[[Any], Any],
    *,
    unit: int | None,
    peak: float | None,
) -> str:
    """Return the text of the file.

    Args:
        description: The curve as JSON values.
        segments: Its segments.
        values_at: The curve as a function from a sequence of steps to an array of multipliers.
        unit: Samples or tokens per step, for a curve that follows a batch plan.
        peak: The default of the argument of `learning_rate`; None if it has no default.
    """
    statements = _statements(inspect.getsource(template))
    shifts = {segment.first_step: segment.shift for segment in segments if segment.shift}
    values = {
        "SEGMENTS": _segments(segments),
        "SHIFTS": repr(shifts),
        "CHECK_VALUE": str(_check_value(values_at(steps_to_check(segments)).tolist())),
        "SHAPES": _shapes(segments),
    }
    for name, value in values.items():
        before, _, _ = statements[name].partition(f"{name} = ")
        statements[name] = f"{before}{name} = {value}"
    if not shifts:
        unshifted = statements["multiplier"].replace("shifted(value, first_step)", "value")
        statements["multiplier"] = unshifted
    if peak is not None:
        argument = f"peak: float = {peak!r}"
        statements["learning_rate"] = statements["learning_rate"].replace("peak: float", argument)
    needed = _needed(statements, ["multiplier", "learning_rate", _SELF_CHECK])
    kept = [text for name, text in statements.items() if name in needed]
    program = "\n".join(kept).strip()
    return f"{_about(description, unit)}\n{program}\n"


def _about(description: Mapping[str, Any], unit: int | None) -> str:
    """Return the docstring of the file."""
    lines = _wrapped(json.dumps(description))
    about_unit = ""
    if unit is not None:
        about_unit = f"Samples or tokens per step: {unit}.\n"
    version = metadata.version("plateau-jax")
    return _ABOUT.format(version=version, curve="\n".join(lines), unit=about_unit)


def _segments(segments: Sequence[ExportedSegment]) -> str:
    lines = ["["]
    for segment in segments:
        numbers = ""
        if segment.shape != FLAT:
            integers = [segment.start, segment.end, *segment.parameters.values()]
            written = ", ".join(map(hexadecimal, integers))
            numbers = f"{segment.skipped}, {segment.length}, {written}"
        line = f'({segment.first_step}, {segment.multiplier!r}, "{segment.shape}", ({numbers})),'
        lines += _wrapped(line, first_indent="    ", indent="     ")
    lines.append("]  # fmt: skip")
    return "\n".join(lines)


def _wrapped(text: str, first_indent: str = "", indent: str = "") -> list[str]:
    """Break code or JSON into lines, at spaces."""
    wrapper = TextWrapper(
        width=100,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return wrapper.wrap(text)


def _shapes(segments: Sequence[ExportedSegment]) -> str:
    used = {segment.shape for segment in segments}
    items: list[str] = []
    for name, function in template.SHAPES.items():
        if name in used:
            items.append(f'"{name}": {function.__name__}')
    if len(items) <= 4:
        return f"{{{', '.join(items)}}}"
    lines = "".join(f"    {item},\n" for item in items)
    return f"{{\n{lines}}}"


def _check_value(multipliers: Iterable[float]) -> int:
    """Return the number that the file computes to check itself."""
    value = 0
    for multiplier in multipliers:
        value = (65537 * value + float32_bits(multiplier)) % (2**61 - 1)
    return value


def _statements(text: str) -> dict[str, str]:
    """Return the statements after the docstring, by the name that each defines.

    Each comes with the blank lines and the comments before it.
    """
    lines = text.splitlines()
    docstring, *nodes = ast.parse(text).body
    end = docstring.end_lineno
    statements: dict[str, str] = {}
    for node in nodes:
        statements[_defined_name(node)] = "\n".join(lines[end : node.end_lineno])
        end = node.end_lineno
    return statements


def _defined_name(node: ast.stmt) -> str:
    match node:
        case ast.Import(names=[ast.alias(name=name)]):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.FunctionDef(name=name):
            return name
        case _:
            return _SELF_CHECK


def _needed(statements: Mapping[str, str], roots: Sequence[str]) -> set[str]:
    """Return the names of these statements, and of all that they use."""
    needed: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in statements and name not in needed:
            needed.add(name)
            waiting += _used_names(statements[name])
    return needed


def _used_names(text: str) -> list[str]:
    return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
