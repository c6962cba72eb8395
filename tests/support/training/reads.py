"""Count every way of reading a tensor of the device; here tensors of a CPU stand in for it."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Operators for whose result, or its shape, the host waits.
_OPERATORS = (
    "_local_scalar_dense",  # item, int, float, bool, index, many a slice
    "_unique",
    "allclose",
    "argwhere",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_",
)
# Methods that call no operator if the tensor is already in host memory.
_METHODS = ("__array__", "__dlpack__", "__repr__", "cpu", "numpy", "tolist", "untyped_storage")


class Reads:
    """A context in which every read adds an entry to `names`.

    Args:
        host: Tensors in host memory, such as page-locked buffers: using them does not count as a
            read, nor does a non-blocking copy into them.
    """

    def __init__(self, host: Iterable[Tensor] = ()) -> None:
        self.names: list[str] = []
        self.host = {tensor.untyped_storage().data_ptr() for tensor in host}
        self.contexts = ExitStack()

    def __enter__(self) -> Self:
        self.contexts.enter_context(_Methods(self))
        self.contexts.enter_context(_Operators(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.contexts.close()

    def is_on_device(self, value: Any) -> bool:
        value = getattr(value, "_local_tensor", value)  # of a DTensor
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if not isinstance(value, Tensor):
                return False
            return value.untyped_storage().data_ptr() not in self.host


class _Methods(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Torch's optimizers pass the device of the parameters, which on a CPU is the host.
        caller = sys._getframe(1).f_globals["__name__"]
        is_read = name in _METHODS
        if name == "to" and not caller.startswith("torch.optim."):
            is_read = any(map(_names_host, [*args[1:], *kwargs.values()]))
        if is_read and self.reads.is_on_device(args[0]):
            self.reads.names.append(name)
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::")
        if self.is_read(name, args, kwargs):
            self.reads.names.append(name)
        return func(*args, **kwargs)

    def is_read(self, name: str, args: Any, kwargs: Any) -> bool:
        """Return True if the host waits for the result, and an argument is on the device."""
        if not (
            name.startswith(_OPERATORS)
            or _takes_a_mask(name, args)
            or self.copies(name, args, kwargs)
        ):
            return False
        return any(map(self.reads.is_on_device, pytree.tree_leaves((args, kwargs))))

    def copies(self, name: str, args: Any, kwargs: Any) -> bool:
        """Return True if the call waits for a copy into host memory."""
        if name != "copy_" or self.reads.is_on_device(args[0]):
            return False
        if len(args) > 2:
            return not args[2]
        return not kwargs.get("non_blocking")


def _names_host(value: Any) -> bool:
    return isinstance(value, str | torch.device) and torch.device(value).type == "cpu"


def _takes_a_mask(name: str, args: Any) -> bool:
    if name.startswith("repeat_interleave.Tensor"):
        return True
    if name.startswith(("index.", "index_put", "_index_put")):
        return any(map(_is_mask, args[1]))
    return False


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def reads_of(call: Callable[[], Any], host: Iterable[Tensor] = ()) -> int:
    with Reads(host) as reads:
        call()
    return len(reads.names)
