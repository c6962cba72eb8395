"""Annotations as they are written: their reprs depend on the versions of Python and NumPy."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any


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
    implementations = [item for item in _definitions(function) if not _is_overload(item)]
    return _text(implementations[0].returns)  # a setter of the same name comes later


def overloads(function: Any) -> list[str]:
    """Return the arguments and the result of each overload."""
    signatures: list[str] = []
    for definition in filter(_is_overload, _definitions(function)):
        arguments = ast.unparse(definition.args).removeprefix("self, ")
        signatures.append(f"({arguments}) -> {_text(definition.returns)}")
    return signatures


def _definitions(function: Any) -> list[ast.FunctionDef]:
    """Return all definitions of this name: overloads, the function itself, and setters."""
    function = inspect.unwrap(function)
    *classes, name = function.__qualname__.split(".")
    scope: ast.AST = _module(function.__module__)
    for class_name in classes:
        scope = _class_in(scope, class_name)
    definitions: list[ast.FunctionDef] = []
    for statement in _statements(scope):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            definitions.append(statement)
    return definitions


def _is_overload(definition: ast.FunctionDef) -> bool:
    return "overload" in map(ast.unparse, definition.decorator_list)


def _type_of_field(cls: type, name: str) -> str | None:
    annotation = None
    for statement in _statements(_class_in(_module(cls.__module__), cls.__name__)):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            annotation = statement.annotation
    return _text(annotation)


def _class_in(scope: ast.AST, name: str) -> ast.ClassDef:
    for statement in _statements(scope):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return statement
    raise LookupError(f"no class {name}")


def _statements(scope: ast.AST) -> Iterator[ast.AST]:
    """Iterate over the statements of a module or class, also under an `if`."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if isinstance(child, ast.If):
            yield from _statements(child)


@cache
def _module(name: str) -> ast.Module:
    source = Path(str(sys.modules[name].__file__))
    return ast.parse(source.read_text(encoding="utf-8"))


def _text(annotation: ast.expr | None) -> str | None:
    if annotation is None:
        return None
    if isinstance(annotation, ast.Constant):  # a name in quotes, or None
        return str(annotation.value)
    return ast.unparse(annotation)
