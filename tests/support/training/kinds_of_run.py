"""Kinds of training runs: a table, over which `test_every_run.py` and the tests on a GPU run.

A new option, optimizer or form of a loss is a row here. `by_hand.py` has the loop that each kind
must equal. Most combinations of options are left to the random programs in `test_every_run.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from typing import Any, cast

import torch
from support.clocks.holds import CURVE as HELD_CURVE, PATIENT
from support.training.models import (
    Batch,
    Net,
    Recurrent,
    batches,
    carried_loss,
    device_pair_loss,
    mean_loss,
    nonfinite,
    pair_loss,
    seeded,
)
from support.training.optimizers import FUSED, OPTIMIZERS, Foreign, NeedsTensor, make_optimizer
from support.training.steps import CURVE, set_loss_scale, step_over
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adam, AdamW, NAdam, Optimizer, RMSprop, SparseAdam

from plateau_jax import BatchPlan, DataClock, HoldBelow, PlateauCurve
from torch_bridge import TrainStep

DEFAULT_LOSS_SCALE = 2.0**16


class Kind:
    """A kind of training run: the arguments of a `TrainStep`, and the form of its batches.

    Args:
        optimizer: A name in `OPTIMIZERS`, or a function of the model that returns an optimizer or
            a list of optimizers.
        loss_fn, curve, options: As `TrainStep` takes them; and `count`, a function that returns
            how much data a micro-batch consumes.
        model: Builds the model, with the same weights each time.
        pieces: Micro-batches per update.
        time: The length of sequences, if the batches are sequences.
        loss_scale, good_updates: Under fp16, the loss scale at the start and its counter.
        rtol: 0 if the run has the bits of the loop by hand; else the two round sums in a different
            order.
        is_on_device: The host waits for nothing. By default so it is with a fused optimizer that
            is given by name.
    """

    def __init__(
        self,
        optimizer: Any = "adamw",
        loss_fn: Callable[..., Any] = mean_loss,
        *,
        model: Callable[[], nn.Module] = Net,
        curve: Any = CURVE,
        pieces: int = 1,
        time: int | None = None,
        loss_scale: float = DEFAULT_LOSS_SCALE,
        good_updates: int = 0,
        rtol: float = 0.0,
        is_on_device: bool | None = None,
        **options: Any,
    ) -> None:
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.model = model
        self.curve = curve
        self.pieces = pieces
        self.time = time
        self.loss_scale = loss_scale
        self.good_updates = good_updates
        self.rtol = rtol
        self.is_on_device = is_on_device
        if is_on_device is None:
            self.is_on_device = optimizer in FUSED
        self.options = options

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        """Return new optimizers of the model, in a list."""
        if isinstance(self.optimizer, str):
            return [make_optimizer(self.optimizer, model)]
        built = self.optimizer(model)
        if isinstance(built, list):
            return cast("list[Optimizer]", built)
        return [built]

    def build(self, loss_fn: Any = None, **options: Any) -> TrainStep:
        """Return a new step of this kind, with these options in place of its own."""
        model = self.model()
        optimizer: Any = self.optimizers(model)
        if len(optimizer) == 1:
            (optimizer,) = optimizer
        options = self.options | options
        step = step_over(model, optimizer, loss_fn or self.loss_fn, self.curve, **options)
        if self.loss_scale != DEFAULT_LOSS_SCALE or self.good_updates != 0:
            set_loss_scale(step, self.loss_scale, self.good_updates)
        return step

    def updates(
        self,
        count: int,
        bad: Iterable[int] = (),
        values: Sequence[float] = (torch.nan, torch.inf),
        seed: int = 0,
    ) -> list[list[Batch]]:
        """Return the micro-batches of each update; bad updates have these values in turn."""
        data = batches(count * self.pieces, seed=seed, time=self.time)
        starts = range(0, len(data), self.pieces)
        updates = [data[start : start + self.pieces] for start in starts]
        for number, value in zip(sorted(bad), cycle(values), strict=False):
            updates[number][-1] = nonfinite(updates[number][-1], value)
        return updates


KINDS: dict[str, Kind] = {}


# Optimizers by name, alone and with several micro-batches.

for name in OPTIMIZERS:
    KINDS[name] = Kind(name)
    KINDS[f"{name}, pieces"] = Kind(name, pieces=3, max_norm=0.05)


# Optimizers with special arguments.


def adam_with_beta_tensors(model: nn.Module) -> Optimizer:
    betas: Any = (torch.tensor(0.8), torch.tensor(0.9))
    return Adam(model.parameters(), lr=0.1, betas=betas, foreach=False)


def sparse_adam(model: nn.Module) -> Optimizer:
    return SparseAdam(model.parameters())


def foreign(model: nn.Module) -> Optimizer:
    return Foreign(model.parameters())


def sparse_embedding() -> nn.Module:
    with seeded(0):
        return nn.Embedding(9, 3, sparse=True)


def embedded_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, _ = batch
    indices = (inputs[:, 0].nan_to_num(0, 0, 0) * 2).long() % 9
    return model(indices).square().sum() + 0 * inputs.sum()


KINDS["betas as tensors"] = Kind(adam_with_beta_tensors)
KINDS["foreign"] = Kind(foreign)
KINDS["sparse"] = Kind(sparse_adam, embedded_loss, model=sparse_embedding, max_norm=0.5, rtol=1e-6)


# Learning rates that are tensors, in one group or shared by several.


def adam_with_lr_tensor(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=torch.tensor(0.1, dtype=torch.float32))


def needs_tensor_with_float64_lr(model: nn.Module) -> Optimizer:
    lr: Any = torch.tensor([0.1], dtype=torch.float64)
    return NeedsTensor(model.parameters(), lr=lr)


def fused_adamw_with_lr_tensor(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=torch.tensor(0.1, dtype=torch.float32), fused=True)


def fused_sgd_with_float64_lr(model: nn.Module) -> Optimizer:
    lr: Any = torch.tensor([0.1], dtype=torch.float64)
    return SGD(model.parameters(), lr=lr, fused=True)


def layers_of(model: Any) -> list[dict[str, Any]]:
    return [{"params": model.first.parameters()}, {"params": model.last.parameters()}]


def fused_adam_with_shared_lr(model: nn.Module) -> Optimizer:
    return Adam(layers_of(model), lr=torch.tensor(0.1), fused=True)


def needs_tensor_with_shared_lr(model: nn.Module) -> Optimizer:
    lr: Any = torch.tensor(0.1)
    return NeedsTensor(layers_of(model), lr=lr)


def needs_tensor_with_momentum_and_shared_lr(model: nn.Module) -> Optimizer:
    lr: Any = torch.tensor(0.1)
    return NeedsTensor(layers_of(model), lr=lr, momentum=0.9)


def two_optimizers_with_shared_lr(model: Any) -> list[Optimizer]:
    lr: Any = torch.tensor(0.1)
    first = Adam(model.first.parameters(), lr=lr, fused=True)
    last = NeedsTensor(model.last.parameters(), lr=lr)
    return [first, last]


LINEAR = PlateauCurve(25, decay_shape="linear")
BELOW = HoldBelow([(1.0, 5), (0.9, 7)], every=3)

KINDS["lr as a tensor"] = Kind(adam_with_lr_tensor)
KINDS["lr as a tensor, float64"] = Kind(needs_tensor_with_float64_lr, precision="bf16")
KINDS["lr as a tensor, fused"] = Kind(
    fused_adamw_with_lr_tensor, precision="fp16", is_on_device=True
)
KINDS["lr as a tensor, fused, float64"] = Kind(fused_sgd_with_float64_lr, is_on_device=True)
KINDS["one lr tensor"] = Kind(needs_tensor_with_shared_lr, curve=[CURVE, LINEAR], precision="fp16")
KINDS["one lr tensor, fused"] = Kind(
    fused_adam_with_shared_lr, curve=[CURVE, LINEAR], is_on_device=True
)
KINDS["one lr tensor, two optimizers"] = Kind(two_optimizers_with_shared_lr, curve=[CURVE, LINEAR])
KINDS["one lr tensor, held"] = Kind(
    needs_tensor_with_momentum_and_shared_lr, curve=HELD_CURVE, clock=[PATIENT, BELOW]
)


# Precision.


def net_in(dtype: torch.dtype) -> nn.Module:
    return Net().to(dtype)


def in_dtype(dtype: torch.dtype, optimizer: Any, **options: Any) -> Kind:
    """Return a run in this dtype; the optimizer may keep its state in a different one."""

    def build(model: nn.Module) -> Optimizer:
        return optimizer(model.parameters())

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype))

    rtol = 0.0
    if dtype == torch.bfloat16:
        rtol = 0.05  # torch's own loop computes the norm in bfloat16
    return Kind(build, loss_fn, model=partial(net_in, dtype), rtol=rtol, **options)


for name in ("adamw", "sgd", "momentum", "rmsprop", "plain momentum"):
    KINDS[f"{name}, bf16"] = Kind(name, precision="bf16", max_norm=0.5)
    KINDS[f"{name}, fp16"] = Kind(name, precision="fp16", max_norm=0.5)
for name in ("adamw", "sgd", "rmsprop"):
    KINDS[f"{name}, overflow"] = Kind(name, precision="fp16", loss_scale=2.0**22)
    KINDS[f"{name}, growth"] = Kind(name, precision="fp16", loss_scale=2.0**10, good_updates=1997)
for optimizer in (Adam, NAdam, ASGD, Foreign):
    KINDS[f"{optimizer.__name__} in float64"] = in_dtype(torch.float64, optimizer)
    KINDS[f"{optimizer.__name__} in bfloat16"] = in_dtype(torch.bfloat16, optimizer)
KINDS["fused in bfloat16"] = in_dtype(torch.bfloat16, partial(AdamW, fused=True), is_on_device=True)


# Losses: means, sums with a weight on the host or on the device, outputs, parameters.


def with_aux(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss_and_aux(model: nn.Module, batch: Batch) -> Any:
        inputs, _ = batch
        outputs = model(inputs)
        parts = [outputs.mean(), (outputs > 0).sum()]
        return loss_fn(model, batch), {"outputs": outputs, "parts": parts}

    return loss_and_aux


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


class Level(nn.Module):
    """A level and a bias, which a loss may return as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.ones(2))


def finite_or_nan(value: Tensor, batch: Batch) -> Tensor:
    """Return the value itself; for a bad batch, NaN."""
    inputs, _ = batch
    if inputs.isfinite().all():
        return value
    return value * torch.nan


def level_loss(model: Any, batch: Batch) -> Tensor:
    return finite_or_nan(model.level, batch)


def view_loss(model: Any, batch: Batch) -> Tensor:
    return finite_or_nan(model.bias[0], batch)


KINDS["pair"] = Kind(loss_fn=pair_loss, max_norm=0.1)
KINDS["device pair, fp16"] = Kind("adamw", device_pair_loss, precision="fp16", max_norm=0.1)
for precision in ("fp32", "bf16", "fp16"):
    KINDS[f"device weights, {precision}"] = Kind(
        "momentum", weighted_loss, pieces=3, precision=precision
    )
    KINDS[f"host weights, {precision}"] = Kind(
        "momentum", weighted_on_host, pieces=3, precision=precision, is_on_device=False
    )
KINDS["half parameters"] = Kind(
    loss_fn=half_loss, model=partial(net_in, torch.float16), pieces=2, rtol=0.01
)
KINDS["aux"] = Kind(loss_fn=with_aux(mean_loss), has_aux=True, pieces=2)
KINDS["aux, bf16"] = Kind(
    "plain adam", with_aux(pair_loss), has_aux=True, pieces=2, precision="bf16"
)
KINDS["a parameter as the loss"] = Kind("plain momentum", level_loss, model=Level)
KINDS["a view as the loss"] = Kind("plain momentum", view_loss, model=Level)


# Parameters and modules.


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


def groups_of_mixed(model: nn.Module) -> list[dict[str, Any]]:
    """Return a group of the matrices, with options, and one of the other parameters."""
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


def fused_adamw_of_mixed(model: nn.Module) -> Optimizer:
    return AdamW(groups_of_mixed(model), lr=0.01, fused=True)


def fused_momentum_of_mixed(model: nn.Module) -> Optimizer:
    return SGD(groups_of_mixed(model), lr=0.1, momentum=0.9, fused=True)


def rmsprop_of_mixed(model: nn.Module) -> Optimizer:
    return RMSprop(groups_of_mixed(model), lr=0.01)


def adam_of_mixed(model: nn.Module) -> Optimizer:
    return Adam(groups_of_mixed(model), lr=0.01)


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


KINDS["mixed"] = Kind(fused_adamw_of_mixed, model=Mixed, is_on_device=True)
KINDS["mixed, momentum"] = Kind(
    fused_momentum_of_mixed, model=Mixed, max_norm=0.05, is_on_device=True
)
KINDS["mixed, float64"] = Kind(rmsprop_of_mixed, model=partial(Mixed, torch.float64))
KINDS["mixed, bfloat16"] = Kind(adam_of_mixed, model=partial(Mixed, torch.bfloat16), rtol=0.05)
KINDS["dropout"] = Kind(model=partial(Net, dropout=0.5))
KINDS["extra state"] = Kind("plain adam", model=Growing)


# Groups, curves and clocks.


def by_layer(*names: str) -> Callable[[Any], Any]:
    """Return a constructor of one optimizer with a group per layer of `Net`, or of one per layer.

    Args:
        *names: One name, or one for each of the two layers.
    """

    def build(model: Any) -> Any:
        groups = layers_of(model)
        groups[1]["lr"] = 0.02
        if len(names) == 1:
            kind, options = OPTIMIZERS[names[0]]
            return kind(groups, **options)
        optimizers: list[Optimizer] = []
        for name, group in zip(names, groups, strict=True):
            kind, options = OPTIMIZERS[name]
            optimizers.append(kind([group], **options))
        return optimizers

    return build


def three_groups(model: Any) -> Optimizer:
    groups = [
        {"params": model.first.parameters(), "lr": 0.1, "weight_decay": 0.3},
        {"params": [model.last.weight], "lr": 1 / 3},
        {"params": [model.last.bias], "lr": 0.0},
    ]
    return AdamW(groups, lr=0.02, fused=True)


def count_samples(batch: Batch) -> int:
    inputs, _ = batch
    return len(inputs)


def count_positive_targets(batch: Batch) -> Tensor:
    _, targets = batch
    return (targets > 0).sum().to(torch.int16)


ENDING = PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3)
PLAN = BatchPlan([(0, 3), (8, 5), (20, 9), (64, 5)]).scale(CURVE, 4, reference=9)

KINDS["two optimizers"] = Kind(by_layer("adamw", "nadam"), curve=(CURVE, [LINEAR]), max_norm=0.5)
KINDS["two fused optimizers"] = Kind(
    by_layer("adamw", "momentum"), curve=[[LINEAR], CURVE], precision="fp16", is_on_device=True
)
KINDS["groups"] = Kind(three_groups, curve=[CURVE, LINEAR, ENDING], is_on_device=True)
KINDS["held"] = Kind(curve=HELD_CURVE, clock=[PATIENT, BELOW], max_norm=0.1)
KINDS["samples"] = Kind(clock=DataClock(7), count=count_samples)
KINDS["positive targets"] = Kind(
    "momentum", pieces=2, clock=DataClock(7), count=count_positive_targets
)
KINDS["a constant batch"] = Kind("momentum", clock=DataClock(3, count=7))
KINDS["batch plan"] = Kind(curve=PLAN, count=count_samples)


# Carries.


def recurrent(
    cells: str,
    optimizer: str = "adamw",
    loss_fn: Callable[..., Any] = carried_loss,
    *,
    pieces: int = 1,
    precision: str = "fp32",
) -> Kind:
    """Return a run over sequences, whose carry is the state of these cells."""
    return Kind(
        optimizer,
        loss_fn,
        model=partial(Recurrent, cells),
        carry=Recurrent(cells).initial(),
        time=3,
        pieces=pieces,
        precision=precision,
    )


def restarting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> Any:
    carry[:, :2] = 0  # two of the four sequences start again
    return carried_loss(model, batch, carry)


TREE = {
    "steps": torch.zeros((), dtype=torch.int64),
    "phase": [torch.ones(2, dtype=torch.complex64), (torch.ones(3, dtype=torch.float64),)],
    "seen": torch.zeros(1).expand(5),
    "flag": torch.tensor(False),
}


def loss_with_tree(model: nn.Module, batch: Batch, carry: Any) -> Any:
    assert carry["seen"].dtype == torch.float32, "the last one returned was float64"
    inputs, _ = batch
    angle, (scale,) = carry["phase"]
    return mean_loss(model, batch), {
        "steps": carry["steps"] + 1,
        "phase": [angle * 1j, (scale / 2,)],
        "seen": carry["seen"].double() + inputs.mean(),
        "flag": ~carry["flag"],
    }


def carried_bias(model: Any, batch: Batch, carry: Tensor) -> Any:
    inputs, _ = batch
    return (model.bias * 2).sum() + 0 * inputs.sum(), model.bias.detach()


KINDS["LSTM"] = recurrent("LSTM")
KINDS["GRU"] = recurrent("GRU")
KINDS["RNN"] = recurrent("RNN")
KINDS["LSTM, pieces"] = recurrent("LSTM", "rmsprop", pieces=3)
KINDS["GRU, pieces"] = recurrent("GRU", "rmsprop", pieces=3)
KINDS["GRU, bf16"] = recurrent("GRU", precision="bf16")
KINDS["GRU that restarts"] = recurrent("GRU", "sgd", restarting_loss)
KINDS["a tree as the carry"] = Kind(loss_fn=loss_with_tree, carry=TREE, pieces=2)
KINDS["a parameter as the carry"] = Kind("sgd", carried_bias, model=Level, carry=torch.zeros(2))


ON_DEVICE = {name: kind for name, kind in KINDS.items() if kind.is_on_device}
"""The kinds whose updates wait for nothing."""
