"""The optimizers that tests train with: by name, and as functions of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

optim = torch.optim

ADAGRAD_RECREATES_STATES = TorchVersion(torch.__version__) >= "2.12"
"""Before torch 2.12 only `__init__` does: `step` raises if states were deleted or a group added."""


# By name.

_sgd = partial(optim.SGD, lr=0.1)

FUSED: dict[str, partial[Optimizer]] = {
    "adam": partial(optim.Adam, lr=0.01, fused=True),
    "amsgrad": partial(optim.Adam, lr=0.01, fused=True, amsgrad=True, weight_decay=0.1),
    "adamw": partial(optim.AdamW, lr=0.01, fused=True),
    "sgd": partial(_sgd, fused=True),
    "momentum": partial(_sgd, fused=True, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(_sgd, fused=True, momentum=0.9, nesterov=True, maximize=True),
    "adagrad": partial(optim.Adagrad, lr=0.1, fused=True),
}
"""These read the decision to skip on the device."""

OTHERS: dict[str, partial[Optimizer]] = {
    "plain adam": partial(optim.Adam, lr=0.01),
    "foreach adamw": partial(optim.AdamW, lr=0.01, foreach=True),
    "plain momentum": partial(_sgd, momentum=0.9, dampening=0.1),
    "plain adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.01),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "nadam": partial(optim.NAdam, lr=0.01),
    "radam": partial(optim.RAdam, lr=0.01),
    "adamax": partial(optim.Adamax, lr=0.01),
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "adafactor": partial(optim.Adafactor, lr=0.01),
    "asgd": partial(optim.ASGD, lr=0.01),
    "rprop": partial(optim.Rprop, lr=0.01),
    "muon": partial(optim.Muon, lr=0.01),
}
OPTIMIZERS = FUSED | OTHERS


def make_optimizer(name: str, model: nn.Module, **more: Any) -> Optimizer:
    parameters = list(model.parameters())
    if name == "muon":  # which takes matrices alone
        parameters = [parameter for parameter in parameters if parameter.dim() == 2]
    return OPTIMIZERS[name](parameters, **more)


# Classes that programs write.


class NeedsTensor(torch.optim.SGD):
    """Rejects a learning rate that is a number, like torchao's optimizers with a compiled step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                raise TypeError(f"lr = {group['lr']} is not a tensor")
        return cast("Any", super()).step(closure)


class Foreign(torch.optim.Optimizer):
    """Keeps values under a name, as MADGRAD does, and under a number that is not a parameter's.

    It also keeps numbers, and tensors of different dtypes. Its first step adds an option to the
    groups, as that of apex's FusedAdam does.
    """

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.25})
        self.state["k"] = torch.zeros(1, dtype=torch.int64)  # type: ignore[index]  (as MADGRAD does)
        self.state[99] = {"calls": 0}  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.state["k"] += 1  # type: ignore[index]
        for group in self.param_groups:
            group["updates"] = group.get("updates", 0) + 1
            for parameter in group["params"]:
                gradient = parameter.grad.double()
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros(parameter.shape)
                    state["sums"] = [torch.zeros_like(gradient)]
                    state["more"] = {"least": torch.zeros_like(gradient)}
                total = state["sums"][0]
                least = state["more"]["least"]
                state["moment"].lerp_(gradient.float(), 0.1)
                total += gradient / 3
                least.copy_(torch.minimum(least, total))
                state["last"] = [state.get("count"), "x"]
                state["count"] = state.get("count", 0) + 1
                parameter.mul_(1 - group["lr"] * group["decay"] / group["updates"])
                num_updates = self.state["k"]  # type: ignore[index]
                change = (total + least) / num_updates + state["moment"]
                parameter.sub_(group["lr"] / state["count"] * change.to(parameter.dtype))


# One group or one optimizer for each layer.


def layers_of(model: Any) -> list[Any]:
    """Return a group per layer of `Net`."""
    return [{"params": model.first.parameters()}, {"params": model.last.parameters()}]


def by_layer(*names: str) -> Callable[[nn.Module], Any]:
    """Return a constructor of one optimizer with a group per layer of `Net`, or of one per layer.

    Args:
        *names: One name, or one for each of the two layers.
    """

    def build(model: Any) -> Any:
        groups = layers_of(model)
        groups[1]["lr"] = 0.02
        if len(names) == 1:
            return OPTIMIZERS[names[0]](groups)
        optimizers: list[Optimizer] = []
        for name, group in zip(names, groups, strict=True):
            optimizers.append(OPTIMIZERS[name]([group]))
        return optimizers

    return build
