"""Pairs of results and what is expected, for checks one by one."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
Expected = TypeVar("Expected")


def pairs(results: Iterable[Result], expected: Iterable[Expected]) -> Iterator[tuple[Result, Expected]]:
    """Pair them like `zip`; if their numbers differ, the error shows both lists."""
    given, wanted = list(results), list(expected)
    assert len(given) == len(wanted), f"{len(given)} results, not {len(wanted)}: {given}, expected {wanted}"
    return zip(given, wanted, strict=True)
