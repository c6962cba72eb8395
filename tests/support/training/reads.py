"""Count every way of reading a tensor of the device; here tensors of a CPU stand in for it."""

import sys
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
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


class Reads(TorchDispatchMode):
    """A context in which every read adds an entry to `names`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.methods = _Methods(self.names)

    def __enter__(self) -> Self:
        self.methods.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.methods.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        if name.startswith(_OPERATORS) or _takes_a_mask(name, args):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Torch's optimizers pass the device of the parameters, which on a CPU is the host.
        caller = sys._getframe(1).f_globals["__name__"]
        is_read = name in _METHODS
        if name == "to" and not caller.startswith("torch.optim."):
            is_read = any(map(_names_host, [*args[1:], *kwargs.values()]))
        if is_read and isinstance(args[0], Tensor):
            self.names.append(name)
        return func(*args, **kwargs)


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


def reads_of(call: Callable[[], Any]) -> list[str]:
    """Return the names of the operators and methods by which a call reads."""
    with Reads() as reads:
        call()
    return reads.names
