"""The samples or tokens that an update consumes: its count on one rank, and the sum over ranks."""

from typing import Any

import torch
from torch import Tensor

from torch_bridge.curve_api import MAX_COUNT, checks

_WORD_BITS = 31
_WORD = 2**_WORD_BITS - 1


def write_count(target: Tensor, count: Any) -> None:
    """Write a count into an int64 scalar on the device, without synchronizing with it.

    Raises:
        TypeError: The count is not an integer.
        ValueError: A count on the host is negative or too large; or a tensor is not a scalar.
    """
    if isinstance(count, Tensor):
        _check_tensor(count)
        if target.is_cpu or not count.is_cpu:
            # A count on the device is not read, so it is clamped, not rejected; on a CPU too, so
            # that both devices train alike.
            target.copy_(count.detach()).clamp_(0, MAX_COUNT)
            return
        count = count.item()  # in host memory, so this does not synchronize
    number = checks.at_least("count", count, 0)
    if number > MAX_COUNT:
        raise ValueError(f"count = {number} must be less than 2**62")
    target.fill_(number)


def _check_tensor(count: Tensor) -> None:
    if count.dtype.is_floating_point or count.dtype.is_complex or count.dtype == torch.bool:
        raise TypeError(f"count is a tensor of {count.dtype}; it must be an integer")
    if count.dim() != 0:
        raise ValueError(f"count is a tensor of shape {tuple(count.shape)}; it must be a scalar")


# Ranks add up their counts in a float64 message, which would round a sum above 2**53. Each word of
# a count has at most 31 bits, so both sums stay exact. With words of 4 bits, 0x5D + 0x2F:
#
#     (5, 13) + (2, 15) = (7, 28),  and (7 << 4) + 28 = 140 = 0x8C
def split_count(count: Tensor) -> Tensor:
    """Split a count into its high and low word, whose sums are exact: float64 of shape (2,)."""
    return torch.stack([count >> _WORD_BITS, count & _WORD]).double()


def join_words(sums: Tensor) -> Tensor:
    """Return the count whose words, each summed over ranks, are these."""
    high, low = sums.long().unbind()
    # A larger high word would overflow in the shift.
    return ((high.clamp(max=_WORD + 1) << _WORD_BITS) + low).clamp_(max=MAX_COUNT)
