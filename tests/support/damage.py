"""Damage to a saved state, drawn by hypothesis."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st

Change = Callable[[Any], Any]
Path = tuple[Any, ...]

# Values that may replace any other.
_VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    0.5,
    float("nan"),
    "x",
    [],
    {},
    {0: 1},
    {1, 2},
    object,
    iter(()),
    torch.zeros(()),
    torch.tensor(float("nan")),
    torch.zeros(3),
    np.zeros(3),
]


def negated(number: Any) -> Any:
    return -1 - number


def wrapped_in_a_list(value: Any) -> list[Any]:
    return [value]


def as_text(value: Any) -> str:
    return str(value)


def as_list(values: Any) -> list[Any]:
    return list(values)


def as_dict(values: Any) -> dict[int, Any]:
    return dict(enumerate(cast("list[Any]", values)))


def with_an_additional_key(state: Any) -> dict[Any, Any]:
    return {**state, "more": 1}


def without_the_first_key(state: Any) -> dict[Any, Any]:
    return dict(list(state.items())[1:])


def with_values_in_reverse(state: Any) -> dict[Any, Any]:
    values = list(state.values())
    return dict(zip(state, values[::-1], strict=True))


def with_the_first_item_again(values: Any) -> list[Any]:
    return [*values, values[0]]


def without_the_last_item(values: Any) -> Any:
    return values[:-1]


def _replacement(value: Any) -> Change:
    def replaced(_: Any) -> Any:
        return value

    return replaced


_CHANGES: list[Change] = [
    negated,
    wrapped_in_a_list,
    as_text,
    as_list,
    as_dict,
    with_an_additional_key,
    without_the_first_key,
    with_values_in_reverse,
    with_the_first_item_again,
    without_the_last_item,
    *map(_replacement, _VALUES),
]


def paths_in(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each entry; that of the whole tree is empty."""
    yield path
    items: Any = ()
    if isinstance(tree, dict):
        items = cast("dict[Any, Any]", tree).items()
    elif isinstance(tree, list | tuple):
        items = enumerate(cast("list[Any]", tree))
    for key, value in items:
        yield from paths_in(value, (*path, key))


def damage(data: st.DataObject, state: Any, changes: Sequence[Change] = ()) -> Any:
    """Change one entry of a state in place, and return the state.

    Args:
        data: Draws the entry and the change.
        state: The state, or the list that holds it, so that the whole state may be replaced too.
        changes: Changes that suit this kind of state, in addition to those that suit any.
    """
    paths = list(paths_in(state))[1:]
    *path, last = data.draw(st.sampled_from(paths))
    change = data.draw(st.sampled_from([*changes, *_CHANGES]))
    holder = state
    for key in path:
        if isinstance(holder[key], tuple):
            holder[key] = list(holder[key])
        holder = holder[key]
    # Not every change applies to every value.
    with suppress(AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        holder[last] = change(holder[last])
    return state
