"""Errors as a table: one row per wrong call.

`ERRORS = [("lambda_lr(optimizer, None)", TypeError, "curve = None", "must be a Curve"), ...]`, and below it a
test for each row, with the names of the test's module and fresh objects:
`@each_row(ERRORS)`, `def test_errors(row): check_error(row, globals(), optimizer=AdamW(...))`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.training.trees import equal_trees

import plateau_jax
import torch_bridge

# A wrong call, the type of its error, and what its message names: the argument, its value, a word that helps.
Row = tuple[str, type[Exception], *tuple[str, ...]]


def each_row(rows: Sequence[Row]) -> pytest.MarkDecorator:
    """Run a test once per row; its name there is the call."""
    return pytest.mark.parametrize("row", rows, ids=[row[0] for row in rows])


def check_error(row: Row, names: Mapping[str, Any], **objects: Any) -> str:
    """Check the exact type of the error, each part of its message, and that no object has changed.

    Returns:
        The message.
    """
    call, error, *parts = row
    before = {name: _state_of(value) for name, value in objects.items()}
    with pytest.raises(error) as caught:
        eval(call, {**_public_names(call), **names, **objects})
    assert type(caught.value) is error
    message = str(caught.value)
    for part in parts:
        assert part in message
    for name, value in objects.items():
        assert equal_trees(_state_of(value), before[name]), f"{name} has changed"
    return message


def _public_names(call: str) -> dict[str, Any]:
    """Return the public names that a call has, and load nothing else."""
    called = compile(call, "call", "eval").co_names
    packages = plateau_jax, torch_bridge
    return {name: getattr(package, name) for package in packages for name in called if name in dir(package)}


def _state_of(value: Any) -> Any:
    return copy.deepcopy(value.state_dict()) if hasattr(value, "state_dict") else repr(value)
