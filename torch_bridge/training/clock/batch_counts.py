"""The samples or tokens that an update consumes: the sum of `count(batch)` over micro-batches and ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import checks
from torch_bridge.saved_states import MAX_CONSUMED

_WORD_BITS = 31
_WORD = 2**_WORD_BITS - 1

MAX_COUNT = MAX_CONSUMED - 1
"""The largest count of an update: the sum of two fits into an int64."""

CountFunction = Callable[[Any], int | Tensor]


class BatchCounts:
    """Adds up the counts of an update's micro-batches on one rank.

    Args:
        function: `count(batch)` returns the samples or tokens of a micro-batch, an int or an integer scalar.
        device: The device of the sum.
    """

    def __init__(self, function: CountFunction, device: torch.device) -> None:
        self._function, self._device = function, device

    @torch.no_grad()
    def __call__(self, micro_batches: Sequence[Any]) -> Tensor:
        """Return the sum as a new int64 scalar. Counts on the device are added there, without a read.

        Raises:
            TypeError: `count` returned something other than an integer.
            ValueError: A count on the host is negative or too large; or a tensor is not a scalar, or on
                a different kind of device.
        """
        host_total, device_counts = 0, list[Tensor]()
        for batch in micro_batches:
            count = self._function(batch)
            if isinstance(count, Tensor):
                if count.dtype.is_floating_point or count.dtype.is_complex or count.dtype == torch.bool:
                    raise TypeError(f"count returned a tensor of {count.dtype}; it must be of integers")
                if count.dim() != 0:
                    raise ValueError(
                        f"count returned a tensor of shape {tuple(count.shape)}; it must be a scalar"
                    )
                if count.device.type not in ("cpu", self._device.type):  # else it fails after the optimizer
                    raise ValueError(f"count returned a tensor on {count.device}, not on {self._device}")
                if count.device.type != "cpu" or self._device.type == "cpu":
                    device_counts.append(count)
                    continue
                count = count.item()  # in host memory, so this does not synchronize
            number = checks.at_least("count(batch)", count, 0)
            if number > MAX_COUNT:
                raise ValueError(f"count(batch) = {number} must be less than 2**62")
            host_total += number
        total = torch.full((), min(host_total, MAX_COUNT), dtype=torch.int64, device=self._device)
        # The host does not see these counts, so they are clamped, not rejected: each sum too, since a sum of
        # three could overflow.
        for count in device_counts:
            total = (total + count.to(torch.int64).clamp(0, MAX_COUNT)).clamp_(max=MAX_COUNT)
        return total


# Ranks add up their counts in a float64 message, which would round a sum above 2**53. Each word of a count
# has at most 31 bits, so both sums stay exact. With words of 4 bits, 0x5D + 0x2F:
#
#     (5, 13) + (2, 15) = (7, 28),  and (7 << 4) + 28 = 140 = 0x8C
def split_count(count: Tensor) -> Tensor:
    """Split a count into its high and low word, whose sums over ranks are exact: float64 of shape (2,)."""
    return torch.stack([count >> _WORD_BITS, count & _WORD]).double()


def join_words(sums: Tensor) -> Tensor:
    """Return the count whose words, each summed over ranks, are these."""
    high, low = sums.long().unbind()
    # A larger high word would overflow in the shift.
    return ((high.clamp(max=_WORD + 1) << _WORD_BITS) + low).clamp_(max=MAX_COUNT)
