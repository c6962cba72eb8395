"""A curve as a pure function in torch: its table as tensors, evaluated at tensors of steps."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from plateau_jax.arguments import checks
from plateau_jax.table.evaluation import (
    Operations,
    Table,
    evaluate as evaluate_table,
    find_rows,
    join_limbs,
)

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def multiplier(table: Table, step: Tensor) -> Tensor:
    """Evaluate the table of a curve at one or more steps, on their device. A pure function.

        multiplier(tensors(curve.table), step) = curve(step)

    The bits are those of `curve(step)`, in eager mode, under `torch.compile(fullgraph=True)`, under
    `torch.func.vmap` over steps, and in a CUDA graph. On GPUs, only an earlier form of the table
    was tested (`docs/how_it_works.md`). The host never waits for the device.

    The table is an ordinary input: without a recompilation, compiled code accepts the table of a
    different curve if its arrays have the same shapes.

    Args:
        table: `tensors(curve.table, device)`: int32 tensors on the device of the step; for a table
            from `stack`, with a leading axis of curves.
        step: A tensor of int8 to int64 or uint8, of any shape. A step below 0 counts as 0. A step
            is an update or, for a curve from `BatchPlan.scale`, its unit of samples or tokens.

    Returns:
        float32 in [0, 1], of the shape of `step`; for a table from `stack`, of shape (curves,) +
        step.shape.

    Raises:
        TypeError: `step` is not a tensor of integers; `table` is not a table of tensors.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import multiplier, tensors
    >>> table = tensors(PlateauCurve(100, warmup_steps=10).table)
    >>> multiplier(table, torch.tensor([0, 5, 10, 55, 100]))
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    if not isinstance(table, Table) or not isinstance(table.begin, Tensor):
        raise TypeError(checks.must("table", table, "be what tensors(curve.table, device) returns"))
    if not isinstance(step, Tensor) or step.dtype not in _INTEGERS:
        raise TypeError(checks.must("step", step, "be a tensor of integers"))
    steps = step.to(torch.int64).clamp(0, checks.MAX_STEP)
    # The coefficients come first, also in a table from `stack`.
    table = table._replace(high=table.high.movedim(-2, 0), low=table.low.movedim(-2, 0))
    if table.begin.ndim == 1:
        return evaluate_table(_TORCH, table, steps)
    curves = len(table.begin)
    multipliers = evaluate_table(_TORCH, table, steps.flatten().expand(curves, -1))
    return multipliers.reshape(curves, *step.shape)


def tensors(table: Table, device: torch.device | str | None = None) -> Table:
    """Copy a table to int32 tensors, for `multiplier`.

    Args:
        table: `curve.table`, or a table from `stack`.
        device: The device of the tensors; None is torch's default device.

    Returns:
        A table of new int32 tensors of the same shapes.

    Raises:
        TypeError: `table` is not a table.

    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import tensors
    >>> tensors(PlateauCurve(100, warmup_steps=10).table).begin[:3]
    tensor([0, 2, 4], dtype=torch.int32)
    """
    if not isinstance(table, Table):
        raise TypeError(checks.must("table", table, "be a table: curve.table, or one from stack"))
    return Table(
        *(torch.tensor(np.asarray(column), dtype=torch.int32, device=device) for column in table)
    )


def _take(column: Tensor, index: Tensor) -> Tensor:
    if column.ndim == 2:
        return column.gather(1, index.to(torch.int64))
    # `column[index]` would read an index without dimensions on the host, which synchronizes.
    return column.index_select(0, index.flatten()).reshape(index.shape)


def _to_int64(value: Tensor) -> Tensor:
    return value.to(torch.int64)


_LOW_BITS = (1 << 10) - 1
_STICKY_BIT = 1 << 9
_MAX_EXPONENT = 126
"""2⁻¹²⁶ is the smallest power of two that float32 can hold with all digits."""


def to_float32(value: Tensor, exponent: Tensor, piece: Tensor) -> Tensor:
    """Return the float32 nearest to value/2^exponent, for values that are 0 or 2⁵⁴ to 2⁶²."""
    # AVX2 cannot convert int64 to float32, so code compiled for it goes by way of float64, which
    # would round twice. The sticky bit prevents that: the bits that float64 cannot hold are
    # replaced by one bit that says whether any of them was set. The same with 8 bits, rounded to 5
    # binary digits and then to 3:
    #     0b10101111 rounds to 101·2⁵, but by way of 10110·2³, a tie, it would round to 110·2⁵
    #     0b10101000, whose low 4 bits are the sticky bit, is 10101·2³ and rounds to 101·2⁵
    low = value & _LOW_BITS
    sticky = (value - low) | torch.where(low != 0, _STICKY_BIT, 0)
    rounded = sticky.to(torch.float32)
    # Two products with powers of two, both exact. The selection between them keeps compilers from
    # multiplying the two powers first, which would underflow. The powers are those of all pieces,
    # because an earlier torch has no vmap of a view as a different dtype.
    is_low = exponent > _MAX_EXPONENT
    scale = _power_of_two(torch.where(is_low, 62 - exponent, -exponent))
    least = _power_of_two(exponent - _MAX_EXPONENT)
    reduced = torch.where(_take(exponent, piece) > _MAX_EXPONENT, rounded * 2.0**-62, rounded)
    # Compared before the product, which would round to a subnormal number.
    return torch.where(rounded < _take(least, piece), 0.0, reduced * _take(scale, piece))


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent in float32; 0 below 2⁻¹²⁶."""
    return ((exponent + 127).clamp(min=0) << 23).to(torch.int32).view(torch.float32)


_TORCH = Operations(
    search=partial(find_rows, _take, torch.where),
    take=_take,
    coefficients=partial(join_limbs, _take, _to_int64),
    int64=_to_int64,
    to_float32=to_float32,
)
"""The functions of torch that the evaluation calls."""
