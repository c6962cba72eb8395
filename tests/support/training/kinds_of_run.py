"""Kinds of training runs: a table, over which the relations in `test_every_run.py` and the GPU's tests run.

A new option, optimizer or form of a loss is a row here. `by_hand.py` has the loop that each must equal.
Most combinations of options are left to the random programs in `test_every_run.py`.
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


class Kind:
    """A kind of training run: the arguments of a `TrainStep`, and the form of its batches.

    Args:
        optimizer: A name in `OPTIMIZERS`, or a function of the model that returns an optimizer or a list.
        loss_fn, curve, options: As `TrainStep` takes them; and `count`, a function that returns what a
            micro-batch consumes.
        model: Builds the model, with the same weights each time.
        pieces: Micro-batches per update.
        time: The length of sequences, if the batches are sequences.
        loss_scale, good_updates: Under fp16, the loss scale of the start and its counter.
        rtol: 0 if the run has the bits of the loop by hand; else the two round sums in a different order.
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
        loss_scale: float = 2.0**16,
        good_updates: int = 0,
        rtol: float = 0.0,
        **options: Any,
    ) -> None:
        self.optimizer, self.loss_fn, self.model, self.curve = optimizer, loss_fn, model, curve
        self.pieces, self.time, self.rtol, self.options = pieces, time, rtol, options
        self.loss_scale, self.good_updates = loss_scale, good_updates

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        if isinstance(self.optimizer, str):
            return [make_optimizer(self.optimizer, model)]
        built = self.optimizer(model)
        return cast("list[Optimizer]", built) if isinstance(built, list) else [built]

    def build(self, loss_fn: Any = None, **options: Any) -> TrainStep:
        model = self.model()
        optimizers = self.optimizers(model)
        optimizer = optimizers if len(optimizers) > 1 else optimizers[0]
        loss_fn = loss_fn or self.loss_fn
        step = step_over(model, optimizer, loss_fn, self.curve, **self.options | options)
        if (self.loss_scale, self.good_updates) != (2.0**16, 0):
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
        updates = [data[first : first + self.pieces] for first in range(0, len(data), self.pieces)]
        for number, value in zip(sorted(bad), cycle(values), strict=False):
            updates[number][-1] = nonfinite(updates[number][-1], value)
        return updates


# Models.


class Mixed(nn.Module):
    """Tied, frozen and unused parameters, a layer outside the optimizer, and odd shapes and layouts."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with seeded(0):
            self.left_out, self.frozen, self.one, self.tied = (nn.Linear(3, 3) for _ in range(4))
            self.last, self.unused = nn.Linear(3, 2), nn.Linear(2, 2)
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.3)
        self.tied.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.scalar, self.empty = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(0, 3))
        self.transposed = nn.Parameter(torch.ones(2, 3).t())
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(self.scalar.dtype)
        hidden = torch.tanh(self.one(self.frozen(self.left_out(inputs))))
        hidden = self.dropout(self.norm(self.tied(hidden))) * self.scalar
        return self.last(hidden) + self.transposed.sum(0) + self.empty.sum()


def _of_mixed(kind: Any, **options: Any) -> Callable[[Any], Optimizer]:
    """Return an optimizer's constructor, with matrices and other parameters in groups of their own."""

    def build(model: Mixed) -> Optimizer:
        trained = [p for name, p in model.named_parameters() if not name.startswith("left_out")]
        matrices, others = ([p for p in trained if (p.dim() > 1) is wanted] for wanted in (True, False))
        return kind([{"params": matrices, "lr": 0.02, "weight_decay": 0.1}, {"params": others}], **options)

    return build


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
        return {"seen": list(self.seen), "sums": torch.stack(self.seen) if self.seen else None}

    def set_extra_state(self, state: Any) -> None:
        self.seen = list(state["seen"])

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        assert local_metadata.get("version") == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)


class Level(nn.Module):
    """A level and a bias, which a loss may return as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.level, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(2))


def _embedding() -> nn.Module:
    with seeded(0):
        return nn.Embedding(9, 3, sparse=True)


# Loss functions.


def with_aux(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss_and_aux(model: nn.Module, batch: Batch) -> Any:
        outputs = model(batch[0])
        return loss_fn(model, batch), {"outputs": outputs, "parts": [outputs.mean(), (outputs > 0).sum()]}

    return loss_and_aux


def weighted_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weights that differ by micro-batch, known to the device alone."""
    weight = (batch[1].square().sum() * 10).round()
    return mean_loss(model, batch) * weight, weight


def weighted_on_host(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    total, weight = weighted_loss(model, batch)
    return total, weight.item()


def _sparse_loss(model: nn.Module, batch: Batch) -> Tensor:
    rows = (batch[0][:, 0].nan_to_num(0, 0, 0) * 2).long() % 9
    return model(rows).square().sum() + 0 * batch[0].sum()


def _level_loss(model: Any, batch: Batch) -> Tensor:
    """Return the parameter itself."""
    return model.level if batch[0].isfinite().all() else model.level * torch.nan


def _view_loss(model: Any, batch: Batch) -> Tensor:
    return model.bias[0] if batch[0].isfinite().all() else model.bias[0] * torch.nan


def _carried_bias(model: Any, batch: Batch, carry: Tensor) -> Any:
    return (model.bias * 2).sum() + 0 * batch[0].sum(), model.bias.detach()


def _restarting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> Any:
    carry[:, :2] = 0  # two of the four sequences start again
    return carried_loss(model, batch, carry)


_TREE = {
    "steps": torch.zeros((), dtype=torch.int64),
    "phase": [torch.ones(2, dtype=torch.complex64), (torch.ones(3, dtype=torch.float64),)],
    "seen": torch.zeros(1).expand(5),
    "flag": torch.tensor(False),
}


def _loss_with_tree(model: nn.Module, batch: Batch, carry: Any) -> Any:
    assert carry["seen"].dtype == torch.float32, "the last one returned was float64"
    return mean_loss(model, batch), {
        "steps": carry["steps"] + 1,
        "phase": [carry["phase"][0] * 1j, (carry["phase"][1][0] / 2,)],
        "seen": carry["seen"].double() + batch[0].mean(),
        "flag": ~carry["flag"],
    }


def half_loss(model: nn.Module, batch: Batch) -> Any:
    total, weight = weighted_loss(model, (batch[0].half(), batch[1]))
    return total, weight


# Optimizers.


def _over_all(kind: Any, *arguments: Any, **options: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), *arguments, **options)


def by_layer(*names: str) -> Callable[[Any], Any]:
    """Return a constructor of one optimizer with a group for each layer of `Net`, or of one for each."""

    def build(model: Any) -> Any:
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters(), "lr": 0.02}]
        kinds = [OPTIMIZERS[name] for name in names]
        if len(kinds) == 1:
            ((kind, options),) = kinds
            return kind(groups, **options)
        return [kind([group], **options) for group, (kind, options) in zip(groups, kinds, strict=True)]

    return build


def _with_lr_tensor(kind: Any, dtype: torch.dtype, *size: int, **options: Any) -> Callable[[Any], Optimizer]:
    """Return a constructor of an optimizer whose learning rate is a tensor, another one each time."""

    def build(model: nn.Module) -> Optimizer:
        return kind(model.parameters(), lr=torch.full(size, 0.1, dtype=dtype), **options)

    return build


def _groups_with_one_lr_tensor(kind: Any, **options: Any) -> Callable[[Any], Optimizer]:
    """Return a constructor of an optimizer whose groups all hold the same tensor."""

    def build(model: Any) -> Optimizer:
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters()}]
        return kind(groups, lr=torch.tensor(0.1), **options)

    return build


def _optimizers_with_one_lr_tensor(model: Any) -> list[Optimizer]:
    lr = torch.tensor(0.1)
    return [Adam(model.first.parameters(), lr=lr, fused=True), NeedsTensor(model.last.parameters(), lr=lr)]


def _groups(model: Any) -> Optimizer:
    groups = [
        {"params": model.first.parameters(), "lr": 0.1, "weight_decay": 0.3},
        {"params": [model.last.weight], "lr": 1 / 3},
        {"params": [model.last.bias], "lr": 0.0},
    ]
    return AdamW(groups, lr=0.02, fused=True)


def _rows(batch: Batch) -> int:
    return len(batch[0])


def _positive(batch: Batch) -> Tensor:
    return (batch[1] > 0).sum().to(torch.int16)


def _recurrent(cells: str, loss_fn: Callable[..., Any] = carried_loss) -> dict[str, Any]:
    carry = Recurrent(cells).initial()
    return {"model": partial(Recurrent, cells), "loss_fn": loss_fn, "carry": carry, "time": 3}


def _net_in(dtype: torch.dtype) -> nn.Module:
    return Net().to(dtype)


def _in(dtype: torch.dtype, kind: Any = Foreign, **options: Any) -> Kind:
    """A run in this dtype, in which the optimizer may keep its state in another one."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0].to(dtype)), batch[1].to(dtype))

    rtol = 0.05 if dtype.itemsize < 4 else 0.0  # torch's own loop computes the norm in bfloat16
    model = partial(_net_in, dtype)
    return Kind(_over_all(kind, **options), loss_fn, model=model, rtol=rtol)


_LINEAR = PlateauCurve(25, decay_shape="linear")
_ENDING = PlateauCurve(6, warmup_steps=3, init_lr_ratio=0.3)
_PLAN = BatchPlan([(0, 3), (8, 5), (20, 9), (64, 5)]).scale(CURVE, 4, reference=9)
_BELOW = HoldBelow([(1.0, 5), (0.9, 7)], every=3)
_SCALED = "adamw", "sgd", "rmsprop"

KINDS: dict[str, Kind] = {
    **{name: Kind(name) for name in OPTIMIZERS},
    **{f"{name}, pieces": Kind(name, pieces=3, max_norm=0.05) for name in OPTIMIZERS},
    "lr as a tensor": Kind(_with_lr_tensor(Adam, torch.float32)),
    "lr as a tensor, float64": Kind(_with_lr_tensor(NeedsTensor, torch.float64, 1), precision="bf16"),
    "lr as a tensor, fused": Kind(_with_lr_tensor(AdamW, torch.float32, fused=True), precision="fp16"),
    "lr as a tensor, fused, float64": Kind(_with_lr_tensor(SGD, torch.float64, 1, fused=True)),
    "one lr tensor": Kind(_groups_with_one_lr_tensor(NeedsTensor), curve=[CURVE, _LINEAR], precision="fp16"),
    "one lr tensor, fused": Kind(_groups_with_one_lr_tensor(Adam, fused=True), curve=[CURVE, _LINEAR]),
    "one lr tensor, two optimizers": Kind(_optimizers_with_one_lr_tensor, curve=[CURVE, _LINEAR]),
    "one lr tensor, held": Kind(
        _groups_with_one_lr_tensor(NeedsTensor, momentum=0.9), curve=HELD_CURVE, clock=[PATIENT, _BELOW]
    ),
    "betas as tensors": Kind(_over_all(Adam, 0.1, (torch.tensor(0.8), torch.tensor(0.9)), foreach=False)),
    "sparse": Kind(_over_all(SparseAdam), _sparse_loss, model=_embedding, max_norm=0.5, rtol=1e-6),
    "foreign": Kind(_over_all(Foreign)),
    # Precision.
    **{
        f"{name}, {precision}": Kind(name, precision=precision, max_norm=0.5)
        for name in ("adamw", "sgd", "momentum", "rmsprop", "plain momentum")
        for precision in ("bf16", "fp16")
    },
    **{f"{name}, overflow": Kind(name, precision="fp16", loss_scale=2.0**22) for name in _SCALED},
    **{
        f"{name}, growth": Kind(name, precision="fp16", loss_scale=2.0**10, good_updates=1997)
        for name in _SCALED
    },
    # Losses.
    "pair": Kind(loss_fn=pair_loss, max_norm=0.1),
    "device pair, fp16": Kind("adamw", device_pair_loss, precision="fp16", max_norm=0.1),
    **{
        f"{where} weights, {precision}": Kind("momentum", loss_fn, pieces=3, precision=precision)
        for where, loss_fn in {"device": weighted_loss, "host": weighted_on_host}.items()
        for precision in ("fp32", "bf16", "fp16")
    },
    "half parameters": Kind(loss_fn=half_loss, model=partial(_net_in, torch.float16), pieces=2, rtol=0.01),
    "aux": Kind(loss_fn=with_aux(mean_loss), has_aux=True, pieces=2),
    "aux, bf16": Kind("plain adam", with_aux(pair_loss), has_aux=True, pieces=2, precision="bf16"),
    "a parameter as the loss": Kind("plain momentum", _level_loss, model=Level),
    "a view as the loss": Kind("plain momentum", _view_loss, model=Level),
    # Parameters and modules.
    "mixed": Kind(_of_mixed(AdamW, lr=0.01, fused=True), model=Mixed),
    "mixed, momentum": Kind(_of_mixed(SGD, lr=0.1, momentum=0.9, fused=True), model=Mixed, max_norm=0.05),
    "mixed, float64": Kind(_of_mixed(RMSprop, lr=0.01), model=partial(Mixed, torch.float64)),
    "mixed, bfloat16": Kind(_of_mixed(Adam, lr=0.01), model=partial(Mixed, torch.bfloat16), rtol=0.05),
    "dropout": Kind(model=partial(Net, dropout=0.5)),
    "extra state": Kind("plain adam", model=Growing),
    **{
        f"{kind.__name__} in {str(dtype)[6:]}": _in(dtype, kind)
        for kind in (Adam, NAdam, ASGD, Foreign)
        for dtype in (torch.float64, torch.bfloat16)
    },
    "fused in bfloat16": _in(torch.bfloat16, AdamW, fused=True),
    # Groups, curves and clocks.
    "two optimizers": Kind(by_layer("adamw", "nadam"), curve=(CURVE, [_LINEAR]), max_norm=0.5),
    "two fused optimizers": Kind(by_layer("adamw", "momentum"), curve=[[_LINEAR], CURVE], precision="fp16"),
    "groups": Kind(_groups, curve=[CURVE, _LINEAR, _ENDING]),
    "held": Kind(curve=HELD_CURVE, clock=[PATIENT, _BELOW], max_norm=0.1),
    "samples": Kind(clock=DataClock(7), count=_rows),
    "positive targets": Kind("momentum", pieces=2, clock=DataClock(7), count=_positive),
    "a constant batch": Kind("momentum", clock=DataClock(3, count=7)),
    "batch plan": Kind(curve=_PLAN, count=_rows),
    # Carries.
    **{cells: Kind(**_recurrent(cells)) for cells in ("LSTM", "GRU", "RNN")},
    **{f"{cells}, pieces": Kind("rmsprop", pieces=3, **_recurrent(cells)) for cells in ("LSTM", "GRU")},
    "GRU, bf16": Kind(precision="bf16", **_recurrent("GRU")),
    "GRU that restarts": Kind("sgd", **_recurrent("GRU", _restarting_loss)),
    "a tree as the carry": Kind(loss_fn=_loss_with_tree, carry=_TREE, pieces=2),
    "a parameter as the carry": Kind("sgd", _carried_bias, model=Level, carry=torch.zeros(2)),
}

_FUSED_GROUPS = (
    *("mixed", "mixed, momentum", "two fused optimizers", "groups", "fused in bfloat16"),
    *("lr as a tensor, fused", "lr as a tensor, fused, float64", "one lr tensor, fused"),
)
_READING_LOSSES = weighted_on_host, _level_loss, _view_loss
ON_DEVICE = {
    name: kind
    for name, kind in KINDS.items()
    if (kind.optimizer in FUSED or name in _FUSED_GROUPS) and kind.loss_fn not in _READING_LOSSES
}
"""The kinds whose updates wait for nothing."""
