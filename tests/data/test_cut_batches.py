"""The batch of a rank that has no samples in an update's last batch."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from support.batches_by_rank import in_each
from torch import Tensor
from torch.utils.data import default_collate

from torch_bridge import make_loader
from torch_bridge.data.cut_batches import without_rows

Pair = namedtuple("Pair", ["first", "second"])


class Fixed(Mapping[str, Any]):
    """A mapping of one's own, which can't be changed."""

    def __init__(self, values: Any) -> None:
        self.values_by_name = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self.values_by_name[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


class Pickier(UserDict[str, Any]):
    """Can't be built of a mapping."""

    def __init__(self, *, values: Any) -> None:
        super().__init__(values)


_KINDS: dict[str, Any] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "UserDict": UserDict,
    "Fixed": Fixed,
    "Pickier": lambda values: Pickier(values=values),
    "nested": lambda values: UserDict(inner=UserDict(values), pair=Pair(values["ids"], [values["ids"]])),
    "tuple": lambda values: (values["ids"], values["name"]),
}


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, str):
        return []
    values: Any = batch.values() if isinstance(batch, Mapping) else batch
    return [tensor for value in values for tensor in _tensors(value)]


def _samples(kind: str) -> list[Any]:
    return [_KINDS[kind]({"ids": torch.full((3,), index), "name": str(index)}) for index in range(5)]


@pytest.mark.parametrize("kind", _KINDS)
def test_a_sample_counts_once_on_several_ranks(kind: str) -> None:
    """Five samples for two ranks with batches of two: the second rank has none of the last batch."""

    def last_rows() -> list[Tensor]:
        *_, last = make_loader(_samples(kind), 2, drop_last=False, shuffle=False, num_workers=0)
        return _tensors(last)

    first, second = in_each(last_rows, processes=2)
    assert [tuple(tensor.shape) for tensor in first] == [(1, 3)] * len(first)
    assert [tuple(tensor.shape) for tensor in second] == [(0, 3)] * len(first)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_kinds_are_those_of_the_batch(kind: str) -> None:
    batch = default_collate(_samples(kind)[:1])
    assert type(without_rows(batch)) is type(batch)


def test_what_can_not_be_taken_apart_is_refused() -> None:
    class Opaque:
        pass

    with pytest.raises(ValueError, match=r"a batch holds a .*Opaque, .* give drop_last = True"):
        without_rows({"a": [torch.ones(1), Opaque()]})
