"""Damage to one entry of a saved state, which is a tree of dictionaries and lists."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st

Change = Callable[[Any], Any]
"""Returns what replaces an entry; or `REMOVED`, which removes it."""
REMOVED = object()

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


def replaced_by(value: Any) -> Change:
    def replaced(_: Any) -> Any:
        return value

    return replaced


_CHANGES: list[Change] = [
    str,
    list,
    lambda number: -1 - number,
    lambda value: [value],
    lambda values: {index: values[index] for index in range(len(values))},
    lambda state: {**state, "more": 1},
    lambda state: dict(list(state.items())[1:]),
    lambda state: dict(zip(state, list(state.values())[::-1], strict=True)),
    lambda values: [*values, values[0]],
    lambda values: values[:-1],
    lambda _: REMOVED,
    *map(replaced_by, _VALUES),
]
any_change = st.sampled_from(_CHANGES)
"""Changes that suit any state."""


def damage(draw: st.DrawFn, tree: Any, changes: st.SearchStrategy[Change]) -> Any:
    """Change one entry of a tree in place, and return the tree.

    Args:
        draw: Draws the entry, at any depth, and the change.
        tree: A dictionary or a list that is not empty.
        changes: Draws the change.
    """
    holder = tree
    key = draw(st.sampled_from(_keys_of(tree)))
    # Deeper three times in four, since most entries are inside of others.
    while _keys_of(holder[key]) and draw(st.integers(0, 3)) > 0:
        if isinstance(holder[key], tuple):
            holder[key] = list(holder[key])
        holder = holder[key]
        key = draw(st.sampled_from(_keys_of(holder)))
    change = draw(changes)
    # Not every change applies to every value.
    with suppress(AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        changed = change(holder[key])
        if changed is REMOVED:
            del holder[key]
        else:
            holder[key] = changed
    return tree


def damaged(draw: st.DrawFn, state: Any) -> Any:
    """Change one entry of a state, or all of it: None stands for no state."""
    holder = damage(draw, [state], any_change)
    if not holder:
        return None
    return holder[0]


def _keys_of(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value))
    if isinstance(value, list | tuple):
        return range(len(cast("list[Any]", value)))
    return ()
