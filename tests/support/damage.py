"""Damage to a saved state, drawn by hypothesis."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st

Change = Callable[[Any], Any]
Path = tuple[Any, ...]

_VALUES: list[Any] = [
    *(None, True, -1, 2**70, 0.5, float("nan"), "x", [], {}, {0: 1}, {1, 2}, object, iter(())),
    *(torch.zeros(()), torch.tensor(float("nan")), torch.zeros(3), np.zeros(3)),
]

_CHANGES: list[Change] = [
    lambda value: -1 - value,
    lambda value: [value],
    lambda value: str(value),
    lambda value: list(value),
    lambda value: dict(enumerate(cast("list[Any]", value))),
    lambda value: {**value, "more": 1},
    lambda value: dict(list(value.items())[1:]),
    lambda value: dict(zip(value, list(value.values())[::-1], strict=True)),
    lambda value: [*value, value[0]],
    lambda value: value[:-1],
    *(lambda _, value=value: value for value in _VALUES),
]


def paths_in(tree: Any, path: Path = ()) -> Iterator[Path]:
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
    *path, last = data.draw(st.sampled_from(list(paths_in(state))[1:]))
    change = data.draw(st.sampled_from([*changes, *_CHANGES]))
    holder = state
    for key in path:
        holder[key] = list(holder[key]) if isinstance(holder[key], tuple) else holder[key]
        holder = holder[key]
    # Not every change applies to every value.
    with suppress(AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        holder[last] = change(holder[last])
    return state
