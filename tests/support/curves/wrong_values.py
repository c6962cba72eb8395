"""Wrong calls, values that are wrong for several arguments, and what their messages say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.numerics.shapes import FORMULAS, SHAPES_ALLOWING_ZERO


@dataclass
class Call:
    """A wrong call of a method, and its error."""

    method: str
    arguments: Sequence[Any]
    error: type[Exception]
    parts: Sequence[str]
    """Parts of the message."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def check(self, value: Any) -> None:
        """Make the call on this value."""
        with pytest.raises(self.error) as caught:
            getattr(value, self.method)(*self.arguments, **self.options)
        assert type(caught.value) is self.error
        for part in self.parts:
            assert part in str(caught.value)


def name_of(call: Call) -> str:
    return f"{call.method}-{call.parts[0]}"


# Items of a dictionary or a set have no order that the user chose.
NOT_PAIRS = [(50,), (50, 10, 5), 50, "50", None, (), {85, 10}, frozenset((85, 10)), {85: 0, 10: 0}]
NOT_PERCENTAGES = ["-1%", "100.0001%", "nan%", "inf%", "%", "2%%", "2 % 3", "1/2%", "2%\n."]
NOT_SHAPES = [
    "x^2",
    "1 - x^2",
    "1-x**2",
    "1-X^2",
    "(1-x)2",
    "1-x",
    "",
    "sqrt",
    "Linear",
    2,
    ["linear"],
]


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(map(repr, names))}, with a decimal for P, such as '1-x^2'"


A_SHAPE = _one_of(FORMULAS)
A_DECAY_SHAPE = _one_of(SHAPES_ALLOWING_ZERO)
A_PERCENTAGE = "a percentage from 0% to 100%"
