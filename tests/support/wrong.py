"""Wrong programs: a test under the decorator `wrong`, or one call under `with raises`.

@pytest.mark.parametrize("batch_size", [0, -1])
@wrong(ValueError, "batch_size = {batch_size}", "at least 1")
def test_batch_size_below_one(batch_size):
    make_loader(range(8), batch_size)


def test_wrong_part(curve):
    with raises(ValueError, "start = -1", "lie in 0 … 999"):
        curve.part(-1)
"""

import copy
import functools
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import pytest
from support.runs.run import Run
from support.trees import assert_equal_trees

Program = Callable[..., object]


@contextmanager
def raises(
    error: type[Exception],
    *parts: str,
    match: str | None = None,
    unchanged: Iterable[object] = (),
) -> Generator[pytest.ExceptionInfo[Exception]]:
    """Check that the program under `with` ends with this error.

    Args:
        error: The exact type.
        *parts: What the message contains.
        match: A regular expression for what no part can express, such as the start of the message.
        unchanged: What the program must not change.
    """
    before = [(value, _state_of(value)) for value in unchanged]
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert type(caught.value) is error
    for part in parts:
        assert part in str(caught.value)
    for value, state in before:
        assert_equal_trees(_state_of(value), state, type(value).__name__)


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
            filled_in = [_filled_in(part, arguments) for part in parts]
            with raises(error, *filled_in, unchanged=arguments.values()):
                program(**arguments)

        return test

    return as_test


def _filled_in(part: str, arguments: dict[str, Any]) -> str:
    for name, value in arguments.items():
        part = part.replace("{" + name + "}", repr(value))
    return part


def _state_of(value: Any) -> Any:
    if isinstance(value, type):
        return repr(value)
    if isinstance(value, Run):
        return value.shown()
    if hasattr(value, "param_groups"):  # an optimizer, whose state_dict lacks the parameters
        return [copy.deepcopy(value.state_dict()), _state_of(value.param_groups)]
    if hasattr(value, "state_dict"):
        return copy.deepcopy(value.state_dict())
    if hasattr(value, "detach"):  # a tensor, of which the repr rounds the values
        return [repr(value), value.detach().clone()]
    if isinstance(value, list):
        return [_state_of(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return [[repr(key), _state_of(item)] for key, item in entries.items()]
    return repr(value)
