"""A curve as a pure function in torch: its table as tensors, evaluated at tensors of steps."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from torch_bridge.curve_api import Operations, Segments, checks, decode_table, evaluate_table, multiply_levels


def multiplier(segments: Segments, step: Tensor) -> Tensor:
    """The multiplier of a table at each step, as a pure function, on the device of the step.

        multiplier(curve.segments, step) = curve(step)

    The bits are those of `curve(step)` on every device: eager, under `torch.compile(fullgraph=True)`, under
    `torch.func.vmap` over steps and in a CUDA graph. It never synchronizes with the device.

    The columns of `curve.segments` are NumPy arrays. They are constants: the first call on a device moves
    them there, and later calls find them. To move them while a CUDA graph is captured is an error, so call it
    once before. Code that was compiled for one curve is compiled again for another. (torch 2.11 has no such
    constants in compiled code, which copies the columns at each call there: give it a table of tensors.)

    A table of tensors, from `tensors`, is an input as any other. Compiled code then takes another table of as
    many rows and of the same columns without a recompilation.

    Args:
        segments: `curve.segments`, or int32 tensors of shape (rows,) on the device of the step; from `stack`,
            arrays or tensors of shape (curves, rows).
        step: A tensor of integers, of any shape and dtype. Below 0 it counts as 0.

    Returns:
        float32 in [0, 1], of the shape of `step`; for a table from `stack`, of shape (curves,) + step.shape.

    Raises:
        TypeError: A step that is no tensor of integers (bool, float, an int of Python); a `segments` that is
            no table, or has a column that is not of int32.
        RuntimeError: The first call with a `curve.segments` on a device, while a CUDA graph is captured.

    >>> import torch
    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import multiplier
    >>> curve = PlateauCurve(100, warmup_steps=10)
    >>> multiplier(curve.segments, torch.tensor([0, 5, 10, 55, 100]))
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    _check_table(segments)
    if not isinstance(step, Tensor):
        raise TypeError(
            f"step = {step!r} must be a tensor of integers; write torch.tensor(step), or curve(step) for a "
            "number or a NumPy array"
        )
    if step.dtype == torch.bool or step.is_floating_point() or step.is_complex():
        raise TypeError(f"step must be a tensor of integers, not of {step.dtype}")
    if not isinstance(segments.begin, Tensor):
        if torch.compiler.is_compiling() and not _HAS_CONSTANTS:
            segments = tensors(segments, step.device)
        else:
            names = _column_names(segments)
            segments = Segments.of_columns(dict(zip(names, _constants(segments, step.device), strict=True)))
    for name, column in segments.columns().items():
        if column.dtype != torch.int32:
            raise TypeError(
                f"segments.{name} is of {column.dtype}; it must be of torch.int32, as in curve.segments"
            )
    steps, table = _in_range(step), decode_table(_TORCH, segments)
    if table.begin.ndim == 1:
        return evaluate_table(_TORCH, table, steps)
    curves, rows = table.begin.shape
    first = rows * torch.arange(curves, device=step.device)[:, None]
    found = evaluate_table(_TORCH, table, steps.flatten().expand(curves, -1), first)
    return found.reshape(curves, *step.shape)


def tensors(segments: Segments, device: Any = None) -> Segments:
    """The table as int32 tensors, for `multiplier`.

    Args:
        segments: `curve.segments`, or a table from `stack`.
        device: Where the tensors lie; None is torch's default device.

    Returns:
        A `Segments` of new int32 tensors of the same shapes. A column that is None stays so.

    Raises:
        TypeError: `segments` is no table.

    >>> from plateau_jax import PlateauCurve
    >>> from torch_bridge import tensors
    >>> tensors(PlateauCurve(100, warmup_steps=10).segments).begin
    tensor([  0,  10, 100], dtype=torch.int32)
    """
    _check_table(segments)
    return Segments.of_columns({name: _copied(column, device) for name, column in segments.columns().items()})


def _copied(column: Any, device: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column.detach().to(device or torch.get_default_device(), torch.int32, copy=True)
    return torch.tensor(np.asarray(column), dtype=torch.int32, device=device)


def _check_table(segments: Any) -> None:
    if not isinstance(segments, Segments):
        raise TypeError(
            f"segments = {segments!r} must be a table: curve.segments, or what stack or tensors returns"
        )


def _in_range(step: Tensor) -> Tensor:
    """The step as int64 in 0 … 2³¹ - 1."""
    wide = step.to(torch.int64)
    if step.dtype == torch.uint64:  # from 2⁶³ on they have become negative
        wide = torch.where(wide < 0, checks.MAX_STEP, wide)
    return wide.clamp(0, checks.MAX_STEP)


_MOVED: dict[Any, tuple[Tensor, Any]] = {}
"""Tables on a device, and on CUDA the event after which they are there. They are never dropped, since the
graphs that a user captured may read them: 64 bytes a row."""

_COMPILED: dict[int, Segments] = {}
"""Tables that are constants of compiled code, which knows them by their id: so no other may get it."""

_HAS_CONSTANTS = TorchVersion(torch.__version__) >= "2.12"
"""Whether a function with arrays among its arguments can give a constant of compiled code."""


# Code that torch compiles may not look at a table of NumPy arrays: each array would become an input of it,
# and would be copied to the device at every call. torch runs these two functions as they are, once, and their
# results are constants. It compiles again for a table with another id.
@torch.compiler.assume_constant_result
def _column_names(segments: Segments) -> tuple[str, ...]:
    return tuple(segments.columns())


@torch.compiler.assume_constant_result
def _constants(segments: Segments, device: torch.device) -> Tensor:
    """The columns that are there, on the device, as one int32 tensor."""
    if torch.compiler.is_compiling():
        _COMPILED[id(segments)] = segments
    columns = segments.columns()
    packed = np.stack(list(columns.values()))
    key = packed.tobytes(), packed.shape, tuple(columns), device
    if key not in _MOVED:
        moved = _moved(packed, device)
        if type(moved[0]) is not Tensor:  # a fake one, for instance, that stands for this trace alone
            return moved[0]
        _MOVED[key] = moved
    tensor, there = _MOVED[key]
    if there is not None and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).wait_event(there)
    return tensor


def _moved(packed: np.ndarray, device: torch.device) -> tuple[Tensor, Any]:
    """The array on the device, and the event after which it is there."""
    # Inside of a transformation of torch.func the tensor would belong to it, and be of no use after it.
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        host = torch.from_numpy(packed)
        if device.type != "cuda":
            return host.to(device), None
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the table of this curve is not on the device yet, and a CUDA graph is being captured: call "
                "multiplier once before the capture, or give it tensors(segments, device)"
            )
        # On a stream of its own, it does not wait for what the device has still to do.
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            tensor = host.pin_memory().to(device, non_blocking=True)
        return tensor, stream.record_event()


def _multiply(one: Any, other: Any) -> Any:
    product = multiply_levels(one, other)
    if not torch.compiler.is_compiling():
        return product
    # For torch's compiler this makes the product a value of its own. Else it writes the product out wherever
    # it is used, again and again, and takes four times as long; the code that it makes is as fast.
    return product.as_strided(product.shape, product.stride())


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.int64)


def _as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """An int64 from 0 to 2⁶² as float32, rounded to nearest even.

    Compiled for AVX2 it goes by way of float64, which would round twice. So, of what float64 has no digits
    for, only whether there is any is kept.
    """
    low = value & _DROPPED
    kept = (value - low) | torch.where(low != 0, _STICKY, 0)
    return torch.where(value < 1 << 53, value, kept).to(dtype)


_DROPPED, _STICKY = (1 << 10) - 1, 1 << 9


def _take(column: Tensor, index: Tensor, mode: str) -> Tensor:
    # Indexing, `column[index]`, would read an index of no dimensions on the host.
    return column.flatten().index_select(0, index.flatten()).reshape(index.shape)


def _minimum(one: Tensor, other: Any) -> Tensor:
    return torch.minimum(one, other) if isinstance(other, Tensor) else one.clamp(max=other)


_TORCH = Operations(
    int64=_wide,
    float32=torch.float32,
    asarray=_as,
    take=_take,
    where=torch.where,
    abs=torch.abs,
    minimum=_minimum,
    maximum=torch.maximum,
    multiply=_multiply,
)
"""The functions of torch that the arithmetic calls."""
