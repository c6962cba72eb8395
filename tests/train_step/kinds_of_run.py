"""Kinds of training runs: a table, over which `test_every_run.py` and the tests on a GPU run.

An entry says how its run differs from the plainest one: fused AdamW over a small net, one batch per
update, a mean loss, in float32. A new option, optimizer or form of a loss is an entry here.
`support/training/by_hand.py` has the loop that each kind must equal. Most combinations of options
are left to the random programs in `test_random_programs.py`.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.clocks.holds import PATIENT, THREE_PLATEAUS
from support.training.kind import Kind
from support.training.models import (
    Batch,
    Net,
    Recurrent,
    carried_loss,
    counting_loss,
    device_pair_loss,
    mean_loss,
    pair_loss,
    seeded,
)
from support.training.optimizers import OPTIMIZERS, Foreign, NeedsTensor, by_layer, layers_of
from support.training.steps import CURVE
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adam, AdamW, NAdam, Optimizer, RMSprop, SparseAdam

from plateau_jax import BatchPlan, DataClock, HoldBelow, PlateauCurve

# Models.


class Level(nn.Module):
    """A level and a bias, which a loss may return as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.ones(2))


class Mixed(nn.Module):
    """Tied, frozen and unused parameters, a layer outside the optimizer, odd shapes and layouts."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with seeded(0):
            self.left_out = nn.Linear(3, 3)
            self.frozen = nn.Linear(3, 3)
            self.one = nn.Linear(3, 3)
            self.tied = nn.Linear(3, 3)
            self.last = nn.Linear(3, 2)
            self.unused = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.3)
        self.tied.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.scalar = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.transposed = nn.Parameter(torch.ones(2, 3).t())
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(self.scalar.dtype)
        hidden = torch.tanh(self.one(self.frozen(self.left_out(inputs))))
        hidden = self.dropout(self.norm(self.tied(hidden))) * self.scalar
        return self.last(hidden) + self.transposed.sum(0) + self.empty.sum()


class Embedded(nn.Embedding):
    """An embedding whose gradients are sparse."""

    def __init__(self) -> None:
        with seeded(0):
            super().__init__(9, 3, sparse=True)


class Growing(nn.Module):
    """A module in its second version, whose extra state grows with every call."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.weight = nn.Parameter(torch.randn(3, 2))
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs.detach().sum(0))
        return inputs @ self.weight

    def get_extra_state(self) -> Any:
        sums = None
        if self.seen:
            sums = torch.stack(self.seen)
        return {"seen": list(self.seen), "sums": sums}

    def set_extra_state(self, state: Any) -> None:
        self.seen = list(state["seen"])

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        assert local_metadata.get("version") == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)


# Losses, and counts of the data in a batch.


def embedded_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of an embedding, whose gradients are sparse."""
    inputs, _ = batch
    indices = (inputs[:, 0].nan_to_num(0, 0, 0) * 2).long() % 9
    return model(indices).square().sum() + 0 * inputs.sum()


def loss_in(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the mean loss, computed in this dtype."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype))

    return loss_fn


def weighted_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weights that differ by micro-batch, known to the device alone."""
    _, targets = batch
    weight = (targets.square().sum() * 10).round()
    return mean_loss(model, batch) * weight, weight


def weighted_on_host(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    total, weight = weighted_loss(model, batch)
    return total, weight.item()


def half_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    return weighted_loss(model, (inputs.half(), targets))


def with_aux(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss_and_aux(model: nn.Module, batch: Batch) -> Any:
        inputs, _ = batch
        outputs = model(inputs)
        parts = [outputs.mean(), (outputs > 0).sum()]
        return loss_fn(model, batch), {"outputs": outputs, "parts": parts}

    return loss_and_aux


def level_loss(model: Any, batch: Batch) -> Tensor:
    return _finite_or_nan(model.level, batch)


def view_loss(model: Any, batch: Batch) -> Tensor:
    return _finite_or_nan(model.bias[0], batch)


def _finite_or_nan(value: Tensor, batch: Batch) -> Tensor:
    """Return the value itself; for a bad batch, NaN."""
    inputs, _ = batch
    if inputs.isfinite().all():
        return value
    return value * torch.nan


def restarting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> Any:
    carry[:, :2] = 0  # two of the four sequences start again
    return carried_loss(model, batch, carry)


TREE = {
    "steps": torch.zeros((), dtype=torch.int64),
    "phase": [torch.ones(2, dtype=torch.complex64), (torch.ones(3, dtype=torch.float64),)],
    "seen": torch.zeros(1).expand(5),
    "flag": torch.tensor(False),
}
"""The carry before the first update of `loss_with_tree`."""


def loss_with_tree(model: nn.Module, batch: Batch, carry: Any) -> Any:
    assert carry["seen"].dtype == torch.float32, "the last one returned was float64"
    inputs, _ = batch
    angle, (scale,) = carry["phase"]
    next_carry = {
        "steps": carry["steps"] + 1,
        "phase": [angle * 1j, (scale / 2,)],
        "seen": carry["seen"].double() + inputs.mean(),
        "flag": ~carry["flag"],
    }
    return mean_loss(model, batch), next_carry


def carried_bias(model: Any, batch: Batch, carry: Tensor) -> Any:
    inputs, _ = batch
    return (model.bias * 2).sum() + 0 * inputs.sum(), model.bias.detach()


def count_samples(batch: Batch) -> int:
    inputs, _ = batch
    return len(inputs)


def count_positive_targets(batch: Batch) -> Tensor:
    _, targets = batch
    return (targets > 0).sum().to(torch.int16)


# Optimizers.


def dimensions_of(model: nn.Module) -> list[Any]:
    """Return groups of `Mixed`: the matrices, with options, and the vectors."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if name.startswith("left_out"):
            continue
        if parameter.dim() > 1:
            matrices.append(parameter)
        else:
            vectors.append(parameter)
    return [{"params": matrices, "lr": 0.02, "weight_decay": 0.1}, {"params": vectors}]


def three_groups(model: Any) -> list[Any]:
    return [
        {"params": model.first.parameters(), "lr": 0.1, "weight_decay": 0.3},
        {"params": [model.last.weight], "lr": 1 / 3},
        {"params": [model.last.bias], "lr": 0.0},
    ]


def over(
    optimizer: Any, groups: Callable[[Any], Any] = nn.Module.parameters, **options: Any
) -> Callable[..., Any]:
    """Return a constructor of an optimizer of these groups, with copies of these options."""

    def build(model: nn.Module) -> Optimizer:
        return optimizer(groups(model), **copy.deepcopy(options))

    return build


def two_optimizers_with_shared_lr(model: Any) -> list[Optimizer]:
    lr: Any = torch.tensor(0.1, requires_grad=True)
    first = Adam(model.first.parameters(), lr=lr, fused=True)
    last = NeedsTensor(model.last.parameters(), lr=lr)
    return [first, last]


# Curves and clocks.

LINEAR = PlateauCurve(25, decay_shape="linear")
ENDING = PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3)
PLAN = BatchPlan([(0, 3), (8, 5), (20, 9), (64, 5)]).scale(CURVE, 4, reference=9)
CURVE_PER_LAYER = [CURVE, LINEAR]
TWO_RULES = [PATIENT, HoldBelow(1.0, 5, every=3)]

KINDS: dict[str, Kind] = {}


# Each optimizer, with one batch per update, and with several and a small `max_norm`.

for name in OPTIMIZERS:
    KINDS[name] = Kind(name)
    KINDS[f"{name}, accumulated"] = Kind(name, accumulation=3, max_norm=0.05)


# Optimizers with special arguments, states and gradients.

BETAS = (torch.tensor(0.8), torch.tensor(0.9))

KINDS["betas as tensors"] = Kind(over(Adam, lr=0.1, betas=BETAS, foreach=False))
KINDS["foreign"] = Kind(over(Foreign))
KINDS["sparse"] = Kind(over(SparseAdam), embedded_loss, model=Embedded, max_norm=0.5, rtol=1e-6)


# The learning rate is a tensor; two groups, each under a curve, share it.

LR = torch.tensor(0.1, requires_grad=True)
FLOAT64_LR = torch.tensor([0.1], dtype=torch.float64)

KINDS["lr as a tensor"] = Kind(over(Adam, lr=LR))
KINDS["lr as a tensor, float64"] = Kind(over(NeedsTensor, lr=FLOAT64_LR), precision="bf16")
KINDS["lr as a tensor, fused"] = Kind(
    over(AdamW, lr=LR, fused=True), precision="fp16", is_on_device=True
)
KINDS["lr as a tensor, fused, float64"] = Kind(
    over(SGD, lr=FLOAT64_LR, fused=True), is_on_device=True
)
KINDS["one lr tensor"] = Kind(
    over(NeedsTensor, layers_of, lr=LR), curve=CURVE_PER_LAYER, precision="fp16"
)
KINDS["one lr tensor, fused"] = Kind(
    over(Adam, layers_of, lr=LR, fused=True), curve=CURVE_PER_LAYER, is_on_device=True
)
KINDS["one lr tensor, two optimizers"] = Kind(two_optimizers_with_shared_lr, curve=CURVE_PER_LAYER)
KINDS["one lr tensor, held"] = Kind(
    over(NeedsTensor, layers_of, lr=LR, momentum=0.9), curve=THREE_PLATEAUS, clock=TWO_RULES
)


# Mixed precision; under fp16, also a loss scale that overflows and one that grows.

for name in ("adamw", "sgd", "momentum", "rmsprop", "plain momentum"):
    KINDS[f"{name}, bf16"] = Kind(name, precision="bf16", max_norm=0.5)
    KINDS[f"{name}, fp16"] = Kind(name, precision="fp16", max_norm=0.5)
for name in ("adamw", "sgd", "rmsprop"):
    KINDS[f"{name}, overflow"] = Kind(name, precision="fp16", loss_scale=2.0**22)
    KINDS[f"{name}, growth"] = Kind(name, precision="fp16", loss_scale=2.0**10, growth_tracker=1997)


# Parameters of another dtype; an optimizer may keep its state in a different one.

float64_net = partial(Net, dtype=torch.float64)
bfloat16_net = partial(Net, dtype=torch.bfloat16)
half_net = partial(Net, dtype=torch.float16)


def in_float64(optimizer: Any) -> Kind:
    return Kind(over(optimizer), loss_in(torch.float64), model=float64_net)


def in_bfloat16(optimizer: Any, **options: Any) -> Kind:
    loss_fn = loss_in(torch.bfloat16)
    rtol = 0.05  # torch's own loop computes the norm in bfloat16
    return Kind(over(optimizer), loss_fn, model=bfloat16_net, rtol=rtol, **options)


for optimizer in (Adam, NAdam, ASGD, Foreign):
    KINDS[f"{optimizer.__name__} in float64"] = in_float64(optimizer)
    KINDS[f"{optimizer.__name__} in bfloat16"] = in_bfloat16(optimizer)
KINDS["fused in bfloat16"] = in_bfloat16(partial(AdamW, fused=True), is_on_device=True)
KINDS["half parameters"] = Kind(loss_fn=half_loss, model=half_net, accumulation=2, rtol=0.01)


# The loss is a sum with a weight, which the host knows or only the device.

KINDS["pair"] = Kind(loss_fn=pair_loss, max_norm=0.1)
KINDS["device pair, fp16"] = Kind(loss_fn=device_pair_loss, precision="fp16", max_norm=0.1)
for precision in ("fp32", "bf16", "fp16"):
    KINDS[f"device weights, {precision}"] = Kind(
        "momentum", weighted_loss, accumulation=3, precision=precision
    )
    KINDS[f"host weights, {precision}"] = Kind(
        "momentum", weighted_on_host, accumulation=3, precision=precision, is_on_device=False
    )


# The loss comes with outputs, or is a parameter itself.

KINDS["aux"] = Kind(loss_fn=with_aux(mean_loss), has_aux=True, accumulation=2)
KINDS["aux, bf16"] = Kind(
    "plain adam", with_aux(pair_loss), has_aux=True, accumulation=2, precision="bf16"
)
KINDS["a parameter as the loss"] = Kind("plain momentum", level_loss, model=Level)
KINDS["a view as the loss"] = Kind("plain momentum", view_loss, model=Level)


# Tied, frozen, unused and odd parameters; modules that draw random numbers or have extra state.

mixed_float64 = partial(Mixed, torch.float64)
mixed_bfloat16 = partial(Mixed, torch.bfloat16)
mixed_adamw = over(AdamW, dimensions_of, lr=0.01, fused=True)
mixed_momentum = over(SGD, dimensions_of, lr=0.1, momentum=0.9, fused=True)
mixed_rmsprop = over(RMSprop, dimensions_of, lr=0.01)
mixed_adam = over(Adam, dimensions_of, lr=0.01)

KINDS["mixed"] = Kind(mixed_adamw, model=Mixed, is_on_device=True)
KINDS["mixed, momentum"] = Kind(mixed_momentum, model=Mixed, max_norm=0.05, is_on_device=True)
KINDS["mixed, float64"] = Kind(mixed_rmsprop, model=mixed_float64)
KINDS["mixed, bfloat16"] = Kind(mixed_adam, model=mixed_bfloat16, rtol=0.05)
KINDS["dropout"] = Kind(model=partial(Net, dropout=0.5))
KINDS["extra state"] = Kind("plain adam", model=Growing)


# Several groups or optimizers, each under its curve.

KINDS["two optimizers"] = Kind(by_layer("adamw", "nadam"), curve=(CURVE, [LINEAR]), max_norm=0.5)
KINDS["two fused optimizers"] = Kind(
    by_layer("adamw", "momentum"), curve=[[LINEAR], CURVE], precision="fp16", is_on_device=True
)
KINDS["groups"] = Kind(
    over(AdamW, three_groups, lr=0.02, fused=True),
    curve=[CURVE, LINEAR, ENDING],
    is_on_device=True,
)


# Clocks: rules that hold, and data that is counted in each batch or is constant.

KINDS["held"] = Kind(curve=THREE_PLATEAUS, clock=TWO_RULES, max_norm=0.1)
KINDS["samples"] = Kind(clock=DataClock(7), count=count_samples)
KINDS["positive targets"] = Kind(
    "momentum", accumulation=2, clock=DataClock(7), count=count_positive_targets
)
KINDS["a constant batch"] = Kind("momentum", clock=DataClock(3, count=7))
KINDS["batch plan"] = Kind(curve=PLAN, count=count_samples)


# Carries: the state of recurrent cells, a tree of tensors, a parameter.


def recurrent(
    cells: str,
    optimizer: str = "adamw",
    loss_fn: Callable[..., Any] = carried_loss,
    **options: Any,
) -> Kind:
    """Return a run over sequences, whose carry is the state of these cells."""
    model = partial(Recurrent, cells)
    return Kind(optimizer, loss_fn, model=model, carry=model().initial(), time=3, **options)


KINDS["LSTM"] = recurrent("LSTM")
KINDS["GRU"] = recurrent("GRU")
KINDS["LSTM, accumulated"] = recurrent("LSTM", "rmsprop", accumulation=3)
KINDS["GRU, bf16"] = recurrent("GRU", precision="bf16")
KINDS["GRU that restarts"] = recurrent("GRU", "sgd", restarting_loss)
KINDS["a tree as the carry"] = Kind(loss_fn=loss_with_tree, carry=TREE, accumulation=2)
KINDS["a count as the carry, held"] = Kind(
    by_layer("adamw", "plain momentum"),
    counting_loss,
    curve=THREE_PLATEAUS,
    clock=PATIENT,
    precision="fp16",
    carry=torch.zeros(2),
)
KINDS["a parameter as the carry"] = Kind("sgd", carried_bias, model=Level, carry=torch.zeros(2))


ON_DEVICE = {name: kind for name, kind in KINDS.items() if kind.is_on_device}
"""The kinds whose updates wait for nothing."""
