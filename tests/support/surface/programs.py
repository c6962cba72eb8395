"""Programs that call the packages, with the outcome of each expression in a comment after it.

After a call, the comment has the type of its result or error, and the types of its warnings. After
any other expression, such as an attribute, it has the value. If an argument is `varied(10)`, the
comment has the first and the last number that are accepted in place of the 10.
"""

import ast
import contextlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.surface.limits import limits, varied
from support.surface.shown import public_class, shown_value, with_shape

PROGRAMS = sorted(Path(__file__).parents[2].glob("surface/*.py"))

_PROMISED_WARNINGS = ("CurveWarning", "UserWarning")
"""Others come from libraries: they warn of what they will change."""


def with_outcomes(program: Path) -> str:
    """Run a program in an empty folder, and return its text with the outcomes of this version."""
    text = program.read_text(encoding="utf-8")
    lines = text.splitlines()
    names: dict[str, Any] = {"__name__": program.stem}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        # Each statement runs alone, because the comment after it shows its outcome.
        for statement in ast.parse(text).body:
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), program.name, "exec"), names)
            elif not isinstance(statement.value, ast.Constant):  # a docstring
                end = (statement.end_lineno or 0) - 1
                comment = _outcome(statement.value, names)
                code = lines[end].encode()[: statement.end_col_offset].decode()
                lines[end] = f"{code}  # {comment}"
    return "".join(f"{line}\n" for line in lines)


def _outcome(expression: ast.expr, names: dict[str, Any]) -> str:
    code = compile(ast.Expression(expression), "", "eval")

    def evaluate() -> object:
        return eval(code, names)

    shown = shown_value
    if isinstance(expression, ast.Call):
        shown = with_shape
    varied.number = None
    outcome = _result(evaluate, shown)
    if varied.number is None:
        return outcome
    return limits(evaluate)


def _result(evaluate: Callable[[], object], shown: Callable[[Any], str]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = shown(evaluate())
        except Exception as error:
            outcome = f"raises {public_class(type(error))}"
    for category in sorted({warning.category.__name__ for warning in caught}):
        if category in _PROMISED_WARNINGS:
            outcome += f", warns {category}"
    return outcome
