"""A wrong program is a test: a function under the decorator `wrong`.

@pytest.mark.parametrize("batch_size", [0, -1])
@wrong(ValueError, "batch_size = {batch_size}", "at least 1")
def test_batch_size_below_one(batch_size):
    make_loader(range(8), batch_size)
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
from support.trees import assert_equal_trees

Program = Callable[..., object]


def wrong(error: type[Exception], *parts: str) -> Callable[[Program], Program]:
    """Make a test of a program that must end with this error, and change none of its arguments.

    The body is the wrong call, and what a user writes before it. Other preparations are fixtures.

    Args:
        error: The exact type.
        *parts: What the message contains. `{name}` is the repr of the argument of that name.
    """

    def as_test(program: Program) -> Program:
        # pytest sees the signature of the program, and passes its fixtures and parameters.
        @functools.wraps(program)
        def test(**arguments: Any) -> None:
            before = _states_of(arguments)
            with pytest.raises(error) as caught:
                program(**arguments)
            assert type(caught.value) is error
            message = str(caught.value)
            for part in parts:
                assert _filled_in(part, arguments) in message
            for name, state in _states_of(arguments).items():
                assert_equal_trees(state, before[name], name)

        return test

    return as_test


def _filled_in(part: str, arguments: dict[str, Any]) -> str:
    for name, value in arguments.items():
        part = part.replace("{" + name + "}", repr(value))
    return part


def _states_of(arguments: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for name, value in arguments.items():
        if hasattr(value, "state_dict") and not isinstance(value, type):
            states[name] = copy.deepcopy(value.state_dict())
        else:
            states[name] = repr(value)
    return states
