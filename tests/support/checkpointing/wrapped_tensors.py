"""A tensor that wraps others, as torchao's moments do, and an optimizer with such moments."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_ALIASING = ("aten.view.default", "aten.detach.default", "aten._to_copy.default")
_SMALLEST = 4  # numbers in a quantized shard


class Wrapped(Tensor):
    """Inner tensors by name, and plain data.

    It has few operators, and those keep the inner tensors: as in torchao, a copy to the CPU on the
    CPU shares its memory with the original.
    """

    tensors: dict[str, Tensor]
    context: Any

    @staticmethod
    def __new__(
        cls: Any, inner: dict[str, Tensor], context: Any, shape: Any, dtype: torch.dtype
    ) -> Any:
        return cast("Any", Tensor)._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(
        self, inner: dict[str, Tensor], context: Any, shape: Any, dtype: torch.dtype
    ) -> None:
        self.tensors = inner
        self.context = context

    def __getattr__(self, name: str) -> Any:
        if name not in self.tensors:
            raise AttributeError(name)
        return self.tensors[name]

    def __repr__(self) -> str:  # type: ignore[override]  # torch's would call operators
        return f"{type(self).__name__}({self.tensors}, {self.context!r}, {tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return list(self.tensors), [self.dtype, self.context]

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, Tensor], context: Any, shape: Any, stride: Any
    ) -> Any:
        dtype, plain = context
        return cls(inner, plain, shape, dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) not in _ALIASING:
            raise NotImplementedError(f"{func} of a {cls.__name__}")
        source = args[0]
        return cls(source.tensors, source.context, source.shape, source.dtype)


class Unlisted(Wrapped):
    """A class that is not in torch's list of safe globals."""


torch.serialization.add_safe_globals([Wrapped])


def quantized(values: Tensor) -> Wrapped:
    """Return values as 8-bit codes and a scale for each row."""
    rows = values.reshape(len(values), -1)
    scales = rows.abs().amax(1).clamp(min=1e-12) / 127
    codes = (rows / scales[:, None]).round().to(torch.int8).view(values.shape)
    context = {"block": rows.shape[1], "kind": "rows", "sizes": (1, tuple(values.shape))}
    return Wrapped({"codes": codes, "scales": scales}, context, values.shape, values.dtype)


def dequantized(moment: Tensor) -> Tensor:
    if not isinstance(moment, Wrapped):
        return moment
    codes = moment.tensors["codes"]
    scales = moment.tensors["scales"]
    rows = codes.reshape(len(codes), -1) * scales[:, None]
    return rows.view(codes.shape)


class Quantizing(torch.optim.Optimizer):
    """Momentum, of which each rank quantizes its shard, unless it is small."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = _local(parameter.grad)
                state = self.state[parameter]
                moment = gradient.clone()
                if state:
                    stored: Any = _local(state["moment"])
                    moment += dequantized(stored)
                    _write(stored, moment)
                else:
                    stored = moment
                    if moment.numel() >= _SMALLEST:
                        stored = quantized(moment)
                    state["moment"] = _placed_like(parameter, stored)
                _local(parameter).sub_(moment, alpha=group["lr"])


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def _placed_like(parameter: nn.Parameter, local: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _write(stored: Tensor, moment: Tensor) -> None:
    """Change a moment in place."""
    if not isinstance(stored, Wrapped):
        stored.copy_(moment)
        return
    for name, value in quantized(moment).tensors.items():
        stored.tensors[name].copy_(value)
