"""The optimizers that tests train with, by name."""

from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

optim = torch.optim

ADAGRAD_RECREATES_STATES = TorchVersion(torch.__version__) >= "2.12"
"""Before torch 2.12 only `__init__` does: `step` raises if states were deleted or a group added."""

# These read the decision to skip on the device.
FUSED: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adam": (optim.Adam, {"lr": 0.01, "fused": True}),
    "amsgrad": (optim.Adam, {"lr": 0.01, "fused": True, "amsgrad": True, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01, "fused": True}),
    "sgd": (optim.SGD, {"lr": 0.1, "fused": True}),
    "momentum": (optim.SGD, {"lr": 0.1, "fused": True, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (
        optim.SGD,
        {"lr": 0.1, "fused": True, "momentum": 0.9, "nesterov": True, "maximize": True},
    ),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "fused": True}),
}
OTHERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "plain adam": (optim.Adam, {"lr": 0.01}),
    "foreach adamw": (optim.AdamW, {"lr": 0.01, "foreach": True}),
    "plain momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    "dampened": (optim.SGD, {"lr": 0.1, "fused": True, "momentum": 0.9, "dampening": 0.5}),
    "plain adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "nadam": (optim.NAdam, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "adadelta": (optim.Adadelta, {"lr": 1.0}),
    "adafactor": (optim.Adafactor, {"lr": 0.01}),
    "asgd": (optim.ASGD, {"lr": 0.01}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
    "muon": (optim.Muon, {"lr": 0.01}),
}
OPTIMIZERS = FUSED | OTHERS


def make_optimizer(name: str, model: nn.Module, **more: Any) -> Optimizer:
    kind, options = OPTIMIZERS[name]
    parameters = [p for p in model.parameters() if name != "muon" or p.dim() == 2]
    return kind(parameters, **options | more)


class NeedsTensor(torch.optim.SGD):
    """Rejects a learning rate that is a number, like torchao's optimizers with a compiled step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                raise TypeError(f"lr = {group['lr']} is not a tensor")
        return cast("Any", super()).step(closure)


class SharpnessAware(torch.optim.Optimizer):
    """Takes the gradients at the worst point nearby, in two steps around a second backward pass.

    Foret et al., Sharpness-Aware Minimization, 2021, arXiv:2010.01412. It shares its groups with
    the optimizer inside, as the programs' classes of this kind do.
    """

    def __init__(
        self, parameters: Any, base: type[Optimizer], *, radius: float = 0.05, **options: Any
    ) -> None:
        super().__init__(parameters, {"radius": radius, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                move = parameter.grad * (group["radius"] / (parameter.grad.norm() + 1e-12))
                parameter.add_(move)
                self.state[parameter]["move"] = move
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["move"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise AssertionError("the second backward pass needs a closure")
        self.first_step()
        with torch.enable_grad():
            loss = closure()
        self.second_step()
        return loss


class Foreign(torch.optim.Optimizer):
    """Keeps a value under a name, as MADGRAD does, numbers, and tensors of different dtypes.

    Its first step adds an option to the groups, as that of apex's FusedAdam does.
    """

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.25})
        self.state["k"] = torch.zeros(1, dtype=torch.int64)  # type: ignore[index]  (as MADGRAD does)

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
