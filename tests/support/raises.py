"""Wrong programs: a whole test under the decorator `raises`, or some lines under `with raises`.

@pytest.mark.parametrize("batch_size", [0, -1])
@raises(ValueError, "batch_size = {batch_size}", "at least 1")
def test_batch_size_below_one(batch_size):
    make_loader(range(8), batch_size)


def test_wrong_part(curve):
    with raises(ValueError, "start = -1", "lie in 0 … 999"):
        curve.part(-1)
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from support.trees import assert_equal_trees

Program = Callable[..., object]


class raises:  # a function to its users, like pytest.raises
    """Check that a program ends with this error, and changes nothing.

    Under `with`, the program is the block. As a decorator, it is the body of the test: the wrong
    call, and what a user writes before it. Other preparations are fixtures. Then no argument of the
    test may change, and `{name}` in a part is the repr of the argument of that name.

    Args:
        error: The exact type.
        *parts: What the message contains.
        match: A regular expression for what no part can express, such as the start of the message.
        unchanged: What the program must not change.
    """

    def __init__(
        self,
        error: type[Exception],
        *parts: str,
        match: str | None = None,
        unchanged: Iterable[object] = (),
    ) -> None:
        self.error = error
        self.parts = parts
        self.match = match
        self.unchanged = list(unchanged)
        self._expected = pytest.raises(error, match=match)

    def __enter__(self) -> pytest.ExceptionInfo[Exception]:
        self._before = [_state_of(value) for value in self.unchanged]
        self._caught = self._expected.__enter__()
        return self._caught

    def __exit__(self, *error: Any) -> bool:
        if not self._expected.__exit__(*error):
            return False
        assert self._caught.type is self.error
        for part in self.parts:
            assert part in str(self._caught.value)
        for value, state in zip(self.unchanged, self._before, strict=True):
            assert_equal_trees(_state_of(value), state, type(value).__name__)
        return True

    def __call__(self, program: Program) -> Program:
        # pytest sees the signature of the program, and passes its fixtures and parameters.
        @functools.wraps(program)
        def test(**arguments: Any) -> None:
            parts = [_filled_in(part, arguments) for part in self.parts]
            with raises(self.error, *parts, match=self.match, unchanged=arguments.values()):
                program(**arguments)

        return test


def _filled_in(part: str, arguments: dict[str, Any]) -> str:
    for name, value in arguments.items():
        part = part.replace("{" + name + "}", repr(value))
    return part


def _state_of(value: Any) -> Any:
    if isinstance(value, type):
        return repr(value)
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
