"""States of models and optimizers of every kind resume bit for bit."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss, seeded
from support.training.optimizers import OPTIMIZERS, Foreign
from support.training.steps import CURVE, check_resume, make_step, train
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, TrainStep


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_empty_optimizer_state_is_ignored(name: str) -> None:
    """`optimizer.state[parameter]` creates an empty one for a parameter that never had a gradient."""
    model = Net()
    model.last.bias.requires_grad_(False)
    step, (batch,) = make_step(name, model), batches(1)
    step(batch)
    assert step.optimizer.state[model.last.bias] == {}
    step.load_state_dict(step.state_dict())
    model.last.bias.requires_grad_(True)
    assert step(batch).applied == 2


@pytest.mark.parametrize("name", ["adamw", "momentum", "adagrad", "plain adam"])
def test_state_loads_into_other_memory_format(name: str) -> None:
    """Fused kernels walk through parameters and moments in the order of memory."""

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    strided, plain = copy.deepcopy(model).to(memory_format=torch.channels_last), model
    data = torch.randn(8, 2, 3, 5, 5)
    steps = [make_step(name, chosen, loss_fn) for chosen in (strided, plain)]
    train(steps[0], data[:4])
    steps[1].load_state_dict(steps[0].state_dict())
    assert equal_trees(steps[1].state_dict(), steps[0].state_dict())
    for step in steps:
        train(step, data[4:])
    torch.testing.assert_close(plain.weight, strided.weight.contiguous(), rtol=1e-5, atol=1e-6)


def test_separate_optimizer_loads_into_other_memory_format(tmp_path: Path) -> None:
    torch.manual_seed(0)
    strided = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    plain, checkpoints, data = nn.Conv2d(3, 4, 3), Checkpoints(tmp_path), torch.randn(8, 2, 3, 5, 5)

    def update(model: nn.Module, optimizer: Any) -> None:
        for batch in data[4:]:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    optimizers = [torch.optim.AdamW(model.parameters(), fused=True) for model in (strided, plain)]
    update(strided, optimizers[0])
    checkpoints.save(1, model=strided, optimizer=optimizers[0])
    checkpoints.load(model=plain, optimizer=optimizers[1])
    for model, optimizer in zip((strided, plain), optimizers, strict=True):
        update(model, optimizer)
    torch.testing.assert_close(plain.weight, strided.weight.contiguous(), rtol=1e-5, atol=1e-6)


def test_optimizer_of_other_library_keeps_memory_layout() -> None:
    """A tensor may have the parameter's shape by chance."""

    def build() -> tuple[TrainStep, Any, nn.Parameter]:
        model = nn.Linear(3, 3)
        optimizer = Foreign(model.parameters())
        return make_step(model=model, optimizer=optimizer, loss_fn=_own_loss), optimizer, model.weight

    (step, optimizer, weight), (resumed, resumed_optimizer, resumed_weight) = build(), build()
    step([torch.ones(2, 3)])
    optimizer.state[weight]["moment"] = optimizer.state[weight]["moment"].T
    resumed.load_state_dict(step.state_dict())
    assert resumed_optimizer.state[resumed_weight]["moment"].stride() == (1, 3)
    assert equal_trees(resumed.state_dict(), step.state_dict())


class _Odd(nn.Module):
    """Parameters that are scalar, empty, complex, or a slice that is not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.complex = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.sliced = nn.Parameter(torch.ones(3, 4)[:, ::2])

    def forward(self, inputs: Tensor) -> Tensor:
        return (
            (inputs * self.scalar * self.complex).abs().sum() + self.sliced.square().sum() + self.empty.sum()
        )


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).square().mean()


_KINDS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "plain adam": lambda model: torch.optim.Adam(model.parameters(), maximize=True),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, foreach=False),
    "rate as a tensor": lambda model: torch.optim.Adam(model.parameters(), torch.tensor(0.1), foreach=False),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "betas as tensors": lambda model: torch.optim.Adam(
        model.parameters(), 0.1, betas=(torch.tensor(0.8), torch.tensor(0.9)), foreach=False
    ),
    "fused": lambda model: torch.optim.AdamW(
        [p for p in model.parameters() if p.is_floating_point()], fused=True
    ),
    "named": lambda model: torch.optim.AdamW(model.named_parameters()),
}


class _Versioned(nn.Linear):
    """A module in its second version; it scales states of the first by a hundredth."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *more: Any) -> None:
        if local_metadata.get("version", 1) < 2:
            state_dict[prefix + "weight"] = 100 * state_dict[prefix + "weight"]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


class _Counting(nn.Linear):
    """A module whose extra state grows with every call."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.seen: list[Any] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append(inputs.detach().sum(0))
        return super().forward(inputs)

    def get_extra_state(self) -> Any:
        return {"seen": list(self.seen), "sums": torch.stack(self.seen) if self.seen else None}

    def set_extra_state(self, state: Any) -> None:
        self.seen = list(state["seen"])


def _odd(kind: Callable[[nn.Module], torch.optim.Optimizer]) -> TrainStep:
    model = _Odd()
    return make_step(optimizer=kind(model), model=model, loss_fn=_own_loss)


def _sparse() -> TrainStep:
    with seeded(0):
        model = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    return make_step(
        model=model, optimizer=optimizer, loss_fn=lambda model, batch: model(batch).square().sum()
    )


def _in(dtype: torch.dtype, kind: Any) -> TrainStep:
    """Return a step whose optimizer may keep a state of another dtype than the parameters."""
    model = Net().to(dtype)

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0].to(dtype)).float(), batch[1])

    if isinstance(kind, str):
        return make_step(kind, model, loss_fn)
    return make_step(optimizer=kind(model.parameters(), lr=0.01), model=model, loss_fn=loss_fn)


def _with_module(kind: Callable[[], nn.Module]) -> TrainStep:
    with seeded(0):
        return make_step(model=nn.Sequential(kind()))


def _groups() -> TrainStep:
    """Return a step with buffers, several groups and curves, and frozen weights."""
    with seeded(2):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    groups = [
        {"params": model[1].parameters(), "lr": 0.1},
        {"params": [model[3].weight], "weight_decay": 0.3},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02, fused=True)
    return TrainStep(model, optimizer, mean_loss, [CURVE, PlateauCurve(9, decay_shape="linear")])


_RUNS: dict[str, Callable[[], TrainStep]] = {
    **{f"odd parameters, {name}": partial(_odd, kind) for name, kind in _KINDS.items()},
    **{
        f"{kind.__name__} in {dtype}": partial(_in, dtype, kind)
        for kind in (torch.optim.NAdam, torch.optim.ASGD, Foreign)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    },
    **{
        f"{name} in bfloat16": partial(_in, torch.bfloat16, name)
        for name in ("adamw", "plain momentum", "adagrad", "plain adam")
    },
    "sparse adam": _sparse,
    "versions of modules": partial(_with_module, lambda: _Versioned(3, 2)),
    "extra state": partial(_with_module, _Counting),
    "groups": _groups,
}


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
@pytest.mark.parametrize("name", _RUNS)
def test_resumed_run_equals_uninterrupted_run(name: str) -> None:
    """torch casts a state to the dtype of its parameters when it loads it."""
    data: Any = batches(9)
    if name == "sparse adam":
        data = torch.randint(9, (9, 5), generator=torch.Generator().manual_seed(0))
    check_resume(_RUNS[name], data, (0, 1, 3, 7))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_load_in_inference_mode_and_on_default_device(name: str) -> None:
    uninterrupted, step = make_step(name), make_step(name)
    data = batches(6)
    results = train(uninterrupted, data)
    train(step, data[:3])
    resumed = make_step(name)
    with torch.inference_mode(), torch.device("meta"):
        resumed.load_state_dict(step.state_dict())
    assert equal_trees(train(resumed, data[3:]), results[3:])
    assert equal_trees(resumed.state_dict(), uninterrupted.state_dict())


def test_option_that_the_state_lacks_keeps_its_value() -> None:
    model = Net()
    saved = make_step(model=Net()).state_dict()
    groups = [{"params": model.parameters(), "lr_scale": 0.5}]
    step = make_step(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01, fused=True))
    step.load_state_dict(saved)
    assert step.optimizer.param_groups[0]["lr_scale"] == 0.5


def test_groups_of_foreign_optimizer_may_have_other_options() -> None:
    """The state has exactly the saved ones, and those of a later version their values here."""

    def build() -> TrainStep:
        model = Net()
        return make_step(model=model, optimizer=Foreign(model.parameters()))

    step, resumed, uninterrupted = build(), build(), build()
    first, data = step.state_dict(), batches(6)
    results = train(uninterrupted, data)
    train(step, data[:3])
    state = through_file(step.state_dict())
    del state["optimizer"]["param_groups"][0]["decay"]
    resumed.load_state_dict(state)
    assert equal_trees(train(resumed, data[3:]), results[3:])
    assert equal_trees(resumed.state_dict(), uninterrupted.state_dict())
    resumed.load_state_dict(first)
    assert "updates" not in resumed.optimizer.param_groups[0]
    assert equal_trees(resumed.state_dict(), first)


@pytest.mark.parametrize(("one", "other"), [("adamw", {}), ("adamw", {"foreach": True}), ("momentum", {})])
def test_implementation_options_stay_the_optimizers(one: str, other: dict[str, Any]) -> None:
    """A state of a fused optimizer loads into a step with another implementation, and vice versa."""
    kind, options = OPTIMIZERS[one]
    data = batches(4)
    for saved, loading in (
        (options, options | {"fused": None} | other),
        (options | {"fused": None} | other, options),
    ):
        steps = []
        for settings in (saved, loading):
            model = Net()
            steps.append(TrainStep(model, kind(model.parameters(), **settings), mean_loss, CURVE))
        train(steps[0], data[:2])
        steps[1].load_state_dict(through_file(steps[0].state_dict()))
        for name in ("fused", "foreach"):
            assert steps[1].optimizer.param_groups[0][name] == loading.get(name)
        after, expected = train(steps[1], data[2:]), train(steps[0], data[2:])
        assert after[-1].applied == 4
        assert all(abs(a.loss - b.loss) < 1e-5 for a, b in zip(after, expected, strict=True))


def test_state_of_capturable_optimizer_loads() -> None:
    """torch runs it only on a GPU; here the optimizer stays as it was built."""
    step, (batch,) = make_step("plain adam"), batches(1)
    step(batch)
    state = step.state_dict()
    state["optimizer"]["param_groups"][0].update(capturable=True, foreach=True)
    other = make_step("plain adam")
    other.load_state_dict(state)
    assert not other.optimizer.param_groups[0]["capturable"]
    assert equal_trees(other(batch), step(batch))
