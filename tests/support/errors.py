"""Errors as a table: one row per wrong call.

`ERRORS = [(lambda optimizer: lambda_lr(optimizer, None), TypeError, "curve = None"), ...]`, and
below it a test for each row, with fresh objects for the parameters of its call:
`@each_row(ERRORS)`, `def test_errors(row): check_error(row, optimizer=AdamW(...))`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import pytest
from support.training.steps import equal_trees

# A wrong call, the type of its error, and what its message names: the argument, its value, a word
# that helps.
Row = tuple[Callable[..., Any], type[Exception], *tuple[str, ...]]


def each(
    call: Callable[..., Any], values: Iterable[Any], error: type[Exception], *parts: str
) -> list[Row]:
    """Return a row for each `value` of a call; in the parts of the message, {} is its repr."""
    rows: list[Row] = []
    for value in values:
        shown = [part.replace("{}", repr(value)) if "{}" in part else part for part in parts]
        rows.append((partial(call, value=value), error, *shown))
    return rows


def each_row(rows: Sequence[Row]) -> pytest.MarkDecorator:
    """Run a test once per row; its name there is the message."""
    return pytest.mark.parametrize(
        "row", rows, ids=[" ".join(row[2:])[:80] or row[1].__name__ for row in rows]
    )


def parameters_of(row: Row) -> list[str]:
    """Return the names of the objects that the call needs: its parameters without a default."""
    names: list[str] = []
    for name, parameter in signature(row[0]).parameters.items():
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_variadic:
            names.append(name)
    return names


def check_error(row: Row, **objects: Any) -> Exception:
    """Check the error's exact type, each part of its message, and that no object has changed."""
    call, error, *parts = row
    before = {name: _state_of(value) for name, value in objects.items()}
    with pytest.raises(error) as caught:
        call(**{name: objects[name] for name in parameters_of(row)})
    assert type(caught.value) is error
    message = str(caught.value)
    for part in parts:
        assert part in message
    for name, value in objects.items():
        assert equal_trees(_state_of(value), before[name]), f"{name} has changed"
    return caught.value


def _state_of(value: Any) -> Any:
    return copy.deepcopy(value.state_dict()) if hasattr(value, "state_dict") else repr(value)


Result = TypeVar("Result")
Expected = TypeVar("Expected")


def pairs(
    results: Iterable[Result], expected: Iterable[Expected]
) -> Iterator[tuple[Result, Expected]]:
    """Pair them like `zip`; if their numbers differ, the error shows both lists."""
    given, wanted = list(results), list(expected)
    assert len(given) == len(wanted), (
        f"{len(given)} results, not {len(wanted)}: {given}, expected {wanted}"
    )
    return zip(given, wanted, strict=True)
