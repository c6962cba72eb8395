"""How many samples or tokens an update consumes: the sum of what `count(batch)` says, over all ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import checks
from torch_bridge.distributed.dtensors import mesh_of
from torch_bridge.schedulers.unit_clocks import MAX_CONSUMED

_WORD_BITS = 31
_WORD = 2**_WORD_BITS - 1

MAX_COUNT = MAX_CONSUMED - 1
"""The most that an update counts: two of them fit into an int64."""

CountFunction = Callable[[Any], "int | Tensor"]


class BatchCounts:
    """Adds up the counts of an update's micro-batches on one rank.

    Args:
        function: `count(batch)` gives a micro-batch's number, an int or an integer scalar.
        device: Where the sum is.
    """

    def __init__(self, function: CountFunction, device: torch.device) -> None:
        self._function, self._device = function, device

    @torch.no_grad()
    def __call__(self, micro_batches: Sequence[Any]) -> Tensor:
        """The sum, an int64 scalar of its own. What is on the device stays there.

        Raises:
            TypeError: `count` returned no integer, or a DTensor.
            ValueError: A negative number that the host knows, or too large a one; a tensor that is no
                scalar, or is on another device than the parameters.
        """
        known, on_device = 0, list[Tensor]()
        for batch in micro_batches:
            found = self._function(batch)
            if isinstance(found, Tensor) and self._is_on_device(found):
                on_device.append(found)
            else:
                known += _number(found)
        total = torch.full((), min(known, MAX_COUNT), dtype=torch.int64, device=self._device)
        for count in on_device:
            total = (total + count.to(torch.int64).clamp(0, MAX_COUNT)).clamp_(max=MAX_COUNT)
        return total

    def _is_on_device(self, count: Tensor) -> bool:
        if count.dtype.is_floating_point or count.dtype.is_complex or count.dtype == torch.bool:
            raise TypeError(f"count returned a tensor of {count.dtype}; it must be of integers")
        if mesh_of(count) is not None:
            raise TypeError(
                "count returned a DTensor; return this rank's own number, as .to_local() of its batch gives "
                "it: ranks are added up"
            )
        if count.dim() != 0:
            raise ValueError(f"count returned a tensor of shape {tuple(count.shape)}; it must be a scalar")
        if count.device == self._device:
            return True
        if count.device.type != "cpu":
            raise ValueError(
                f"count returned a tensor on {count.device}; the parameters are on {self._device}"
            )
        return False


def _number(found: Any) -> int:
    number = checks.at_least("count(batch)", found.item() if isinstance(found, Tensor) else found, 0)
    if number > MAX_COUNT:
        raise ValueError(f"count(batch) = {number} must be less than 2**62")
    return number


def split_count(count: Tensor) -> Tensor:
    """A count as two float64, which stay exact when they are summed over ranks: of shape (2,)."""
    return torch.stack([count >> _WORD_BITS, count & _WORD]).double()


def join_words(sums: Tensor) -> Tensor:
    """`words` backwards, of the sums over ranks."""
    high, low = sums.long().unbind()
    return ((high.clamp(max=_WORD + 1) << _WORD_BITS) + low).clamp_(max=MAX_COUNT)
