"""Small models, their losses, and what tests of the training step ask of tensors."""

import copy
import io
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, lambda_lr

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 30)], min_lr_ratio=0.1, init_lr_ratio=0.5)

optim = torch.optim
# Those that take the decision to skip on the device.
FUSED: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adam": (optim.Adam, {"lr": 0.01, "fused": True}),
    "amsgrad": (optim.Adam, {"lr": 0.01, "fused": True, "amsgrad": True, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01, "fused": True}),
    "sgd": (optim.SGD, {"lr": 0.1, "fused": True}),
    "momentum": (optim.SGD, {"lr": 0.1, "fused": True, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (optim.SGD, {"lr": 0.1, "fused": True, "momentum": 0.9, "nesterov": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "fused": True}),
}
OTHERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "plain adam": (optim.Adam, {"lr": 0.01}),
    "foreach adamw": (optim.AdamW, {"lr": 0.01, "foreach": True}),
    "plain momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
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


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Numbers drawn on the host come from the seed; the GPUs, however many, are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class Net(nn.Module):
    """Two layers; a seed gives the same ones every time."""

    def __init__(self, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        with seeded(seed):
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(inputs))))


class Recurrent(nn.Module):
    """An LSTM or a GRU, which passes its state on, and a layer on top of it."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        with seeded(0):
            self.cells, self.last = getattr(nn, kind)(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        hidden, carry = self.cells(inputs, carry)
        return self.last(hidden), carry

    def initial(self, rows: int = 4) -> Any:
        state = torch.zeros(1, rows, 5)
        return (state, state.clone()) if isinstance(self.cells, nn.LSTM) else state


Batch = tuple[Tensor, Tensor]


def batches(count: int, rows: int = 4, seed: int = 0, time: int | None = None) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if time is None else (rows, time)
    return [
        (torch.randn(*shape, 3, generator=generator), torch.randn(*shape, 2, generator=generator))
        for _ in range(count)
    ]


def spoiled(batch: Batch, value: float = float("nan")) -> Batch:
    """A batch whose loss is not finite."""
    return batch[0] * value, batch[1]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]).to(batch[1].dtype), batch[1])


def pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
    return (model(batch[0]).float() - batch[1]).square().sum(), batch[1].numel()


def device_pair_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    total, weight = pair_loss(model, batch)
    return total, torch.tensor(weight)


def carried_loss(model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
    outputs, carry = model(batch[0], carry)
    return nn.functional.mse_loss(outputs.to(batch[1].dtype), batch[1]), carry


def counting_loss(model: nn.Module, batch: Batch, carry: Tensor) -> tuple[Tensor, Tensor]:
    """With a carry that counts micro-batches, and changes no loss."""
    return mean_loss(model, batch), carry + 1


def optimizer_of(name: str, model: nn.Module, **more: Any) -> Optimizer:
    kind, options = OPTIMIZERS[name]
    parameters = [p for p in model.parameters() if name != "muon" or p.dim() == 2]
    return kind(parameters, **options | more)


def step_of(
    name: str = "adamw",
    model: nn.Module | None = None,
    loss_fn: Callable[..., Any] = mean_loss,
    curve: Any = CURVE,
    optimizer: Any = None,
    **options: Any,
) -> TrainStep:
    model = Net() if model is None else model
    optimizer = optimizer_of(name, model) if optimizer is None else optimizer
    return TrainStep(model, optimizer, loss_fn, curve, **options)


def set_loss_scale(step: TrainStep, scale: float, good_updates: int = 0) -> None:
    """Set the loss scale under fp16, and how many updates without an overflow it has seen."""
    state = step.state_dict()
    state["loss_scale"] = [torch.tensor(scale), torch.tensor(good_updates, dtype=torch.int32)]
    step.load_state_dict(state)


def by_hand(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    updates: Sequence[Sequence[Any]],
    max_norm: float | None = None,
    loss_fn: Callable[..., Tensor] = mean_loss,
    skips: Iterable[int] = (),
) -> list[tuple[Tensor, ...]]:
    """The plain loop, without the updates to skip: learning rates, loss and norm; of a skipped one the rates.

    A fused optimizer gets its learning rate as a tensor.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for group in groups:
        if group.get("fused"):
            group["lr"] = torch.tensor(group["lr"])
    schedulers = [lambda_lr(optimizer, CURVE) for optimizer in optimizers]
    results: list[tuple[Tensor, ...]] = []
    for number, micro_batches in enumerate(updates):
        rates = torch.tensor([float(group["lr"]) for group in groups])
        if number in skips:
            results.append((rates,))
            continue
        model.zero_grad()
        total = torch.zeros(())
        for batch in micro_batches:
            loss = loss_fn(model, batch) / len(micro_batches)
            loss.backward()
            total = total + loss.detach()
        parameters = [parameter for group in groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, float("inf") if max_norm is None else max_norm)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        results.append((rates, total, norm))
    return results


def lrs_of(step: TrainStep, applied: int) -> np.ndarray:
    """The rates of each group after so many updates, from their definition."""
    return np.array(
        [CURVE(applied) * np.float32(group["initial_lr"]) for group in step.optimizer.param_groups]
    )


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal, tensors bit for bit and in their dtypes (NaN equals NaN)."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pair = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(pair[0]) == len(pair[1]) and all(map(same, *pair))
    return bool(one == other)


def contents(step: TrainStep) -> dict[str, Any]:
    """What a skipped update leaves alone: a state without rates, random numbers and the scale's counter."""
    state = cast("dict[str, Any]", step.state_dict())
    state["loss_scale"] = state["loss_scale"] and state["loss_scale"][0]
    states = [state["optimizer"]] if len(step.optimizers) == 1 else state["optimizer"]
    for group in (group for each in states for group in each["param_groups"]):
        del group["lr"]
    del state["random"]
    return state


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_resumed(
    build: Callable[[], TrainStep], updates: Sequence[Any], stops: Iterable[int] = (5,)
) -> None:
    """Compare a run with one that another step resumes at each of these updates, from a file."""
    seed = torch.default_generator.manual_seed  # torch.manual_seed writes a traceback down each time
    seed(1)
    uninterrupted = build()
    results = train(uninterrupted, updates)
    end = torch.rand(3), uninterrupted.state_dict()

    seed(1)
    step, done = build(), 0
    state = kept = None
    for at in sorted(stops):
        assert same(train(step, updates[done:at]), results[done:at])
        state = through_file(step.state_dict())
        kept = copy.deepcopy(state)
        seed(99)
        step, done = build(), at
        train(step, updates[2 : 2 + at % 5])  # it has been somewhere else before
        step.load_state_dict(state)
        assert same(step.state_dict(), state)
    assert same(train(step, updates[done:]), results[done:])
    assert same((torch.rand(3), step.state_dict()), end)
    assert same(state, kept), "the caller's state was changed"


class Operators(TorchDispatchMode):
    """Keeps the name of every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})

    @property
    def reads(self) -> int:
        """Values of tensors that the host has asked for."""
        return sum("_local_scalar_dense" in name for name in self.names)


class Tape(TorchDispatchMode):
    """Keeps operators with their arguments and outcomes, as a graph would, to run them again."""

    def __init__(self) -> None:
        super().__init__()
        self._tape: list[tuple[Any, list[Any], pytree.TreeSpec, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        self._tape.append((func, *pytree.tree_flatten((args, kwargs)), pytree.tree_leaves(outcome)))
        return outcome

    def replay(self) -> None:
        """Run them on what is now in the same inputs; what comes out goes where it came out then."""
        now: dict[int, tuple[Tensor, Tensor]] = {}

        def present(leaf: Any) -> Any:
            return now[id(leaf)][1] if id(leaf) in now else leaf

        # The tape was written beneath autograd, the backward pass included.
        with torch._C._AutoDispatchBelowAutograd():
            for func, inputs, spec, outcome in self._tape:
                args, kwargs = pytree.tree_unflatten(map(present, inputs), spec)
                again = pytree.tree_leaves(func(*args, **kwargs))
                for old, new in zip(outcome, again, strict=True):
                    if isinstance(old, Tensor):
                        now[id(old)] = old, new
            for old, new in now.values():
                if old.is_contiguous() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def skip_patterns(size: int) -> st.SearchStrategy[list[bool]]:
    """Runs of updates that are skipped and of others, from none to all."""
    return st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1).map(
        lambda runs: [skip for skip, length in runs for _ in range(length)][:size]
    )


def train(step: TrainStep, updates: Iterable[Batch]) -> list[Any]:
    return [step(batch) for batch in updates]
