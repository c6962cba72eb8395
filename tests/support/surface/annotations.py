"""Annotations as they are written: their reprs depend on the versions of Python and NumPy."""

import ast
import inspect
import textwrap
from functools import cached_property
from typing import Any, get_overloads


def type_of_member(cls: type, name: str) -> str | None:
    """Return the annotation of a field, or of what a property returns; None if it has none."""
    for base in cls.__mro__:
        member = vars(base).get(name)
        if isinstance(member, property):
            return return_type(member.fget)
        if isinstance(member, cached_property):
            return return_type(member.func)
        if name in inspect.get_annotations(base):
            return _type_of_field(base, name)
    return None


def return_type(function: Any) -> str | None:
    """Return the annotation of a function's result; None if it has none."""
    return _text(_definition(function).returns)


def overloads(function: Any) -> list[str]:
    """Return the arguments and the result of each overload."""
    signatures: list[str] = []
    for overload in get_overloads(function):
        definition = _definition(overload)
        arguments = ast.unparse(definition.args).removeprefix("self, ")
        signatures.append(f"({arguments}) -> {_text(definition.returns)}")
    return signatures


def _type_of_field(cls: type, name: str) -> str | None:
    annotation = None
    for statement in _definition(cls).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            annotation = statement.annotation
    return _text(annotation)


def _definition(function_or_class: Any) -> Any:
    source = inspect.getsource(inspect.unwrap(function_or_class))
    [definition] = ast.parse(textwrap.dedent(source)).body
    return definition


def _text(annotation: ast.expr | None) -> str | None:
    if annotation is None:
        return None
    if isinstance(annotation, ast.Constant):  # a name in quotes, or None
        return str(annotation.value)
    return ast.unparse(annotation)
