"""A batch that was put together by torch, cut to no rows."""

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

from torch import Tensor
from torch.utils import _pytree as pytree


def without_rows(batch: Any) -> Any:
    """The batch with every tensor cut to no rows along its first dimension; strings and numbers stay.

    Mappings are taken apart as torch's `default_collate` puts them together, those of other libraries and of
    the user's own too.

    Raises:
        ValueError: It holds an object that can't be taken apart.
    """
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return _mapping_without_rows(cast("Mapping[Any, Any]", batch))
    if batch is None or isinstance(batch, str | bytes | int | float | complex):
        return batch
    if pytree.tree_structure(batch).is_leaf():
        raise ValueError(
            f"a batch holds a {type(batch).__qualname__}, but this process needs a batch without rows, and "
            "can't cut it: give drop_last = True, or another batch_size"
        )
    # The parts of one node: a mapping in them that pytree knows is no leaf here either.
    leaves, structure = pytree.tree_flatten(batch, lambda part: part is not batch)
    return pytree.tree_unflatten(map(without_rows, leaves), structure)


def _mapping_without_rows(batch: Mapping[Any, Any]) -> Any:
    cut = {key: without_rows(value) for key, value in batch.items()}
    try:
        if isinstance(batch, MutableMapping):
            clone = copy.copy(batch)
            clone.update(cut)
            return clone
        return cast("Any", type(batch))(cut)
    except TypeError:  # a class that can't be built so: torch gives a dictionary in its place, too
        return cut
