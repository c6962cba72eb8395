"""States whose moments or rules do not fit: an error names the entry, before anything is written.

A state has each number once. A wrong one, such as a moment, only a digest could detect: that of
`Checkpoints`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.trees import equal_trees
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plateau_jax import HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep

CURVE = PlateauCurve(64, warmup_steps=4, plateaus=[(0, 50)], init_lr_ratio=0.25)
HOLD = HoldUntilFlat(2, limit=9)
UPDATES = 6
BATCH = torch.ones(3, 2)


def mean_square(model, batch):
    return model(batch).square().mean()


def step(clock=None, optimizer_class=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = optimizer_class(model.parameters(), lr=0.5, **options)
    part = TrainStep(model, optimizer, mean_square, CURVE, clock=clock)
    for _ in range(UPDATES):
        part(BATCH)
    return part


def held_step():
    return step(HOLD)


def momentum_step():
    return step(optimizer_class=torch.optim.SGD, momentum=0.9)


def fused_step():
    return step(fused=True)


Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Contradiction:
    """An entry of a part's state that no longer fits the others."""

    build: Callable[[], Any]
    path: Path
    value: Any
    message: str

    def __str__(self):
        return f"{self.build.__name__}-{'.'.join(map(str, self.path))}"


GROUP = "optimizer", "param_groups", 0
MOMENTS = "optimizer", "state", 0
MOMENT = "optimizer", "state", 0, "exp_avg"
BEST = "hold", 0, "best"

CONTRADICTIONS = [
    # Numbers that no run can have.
    Contradiction(held_step, BEST, torch.nan, "not a state of the rule"),
    # Moments with which the next update would fail.
    Contradiction(step, MOMENT, torch.zeros(1, 2, dtype=torch.float16), "exp_avg in torch.float16"),
    Contradiction(fused_step, MOMENT, torch.zeros(1, 2).double(), "exp_avg in torch.float64"),
    Contradiction(step, MOMENT, None, "exp_avg in None instead of torch.float32 for parameter 0"),
    Contradiction(step, MOMENTS, {"step": torch.tensor(6.0)}, "no exp_avg for parameter 0"),
    Contradiction(step, MOMENTS, {"exp_avg": torch.zeros(1, 2)}, "no step for parameter 0"),
    Contradiction(step, (*GROUP, "params"), [7, 8], "moments of parameter 0, which no group has"),
    Contradiction(step, ("optimizer", "state"), {"0": {}}, "parameter '0', which no group has"),
    Contradiction(momentum_step, MOMENTS, {"momentum": torch.zeros(1, 2)}, "no momentum_buffer"),
]


def with_changed_entry(state, path, value):
    """Return a copy of a state with another value in one place."""
    changed = copy.deepcopy(state)
    *parents, name = path
    place = changed
    for parent in parents:
        place = place[parent]
    place[name] = value
    return changed


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("contradiction", CONTRADICTIONS, ids=str)
def test_contradiction_is_rejected(contradiction, strict):
    state = contradiction.build().state_dict()
    part = contradiction.build()
    damaged = with_changed_entry(state, contradiction.path, contradiction.value)
    with pytest.raises(ValueError, match=contradiction.message):
        part.load_state_dict(damaged, strict=strict)
    assert equal_trees(part.state_dict(), state)
    part.load_state_dict(state, strict=strict)
    assert equal_trees(part.state_dict(), state)


# Moments.


def test_parameter_without_moments_is_accepted():
    """It had no gradient so far."""
    part = step()
    state = part.state_dict()
    without_moments = with_changed_entry(state, ("optimizer", "state", 1), {})
    part.load_state_dict(without_moments)
    result = part(BATCH)
    assert result.applied == UPDATES + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_moments_that_an_update_can_use_are_accepted(dtype):
    """SGD adds a gradient to a momentum of any dtype: a program may keep it in another one."""
    part = momentum_step()
    for values in part.optimizer.state.values():
        values["momentum_buffer"] = values["momentum_buffer"].to(dtype)
    part(BATCH)
    check_resumed_step(momentum_step(), part)


def check_resumed_step(resumed, part):
    """Load the state of a step into another one: the next update of both is the same."""
    state = part.state_dict()
    resumed.load_state_dict(state)
    assert equal_trees(resumed.state_dict(), state)
    assert equal_trees(resumed(BATCH), part(BATCH))


# torch's optimizers that make an update from a gradient alone; Muon needs a matrix.
TORCHS = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adafactor,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer_class", TORCHS)
def test_moments_of_torchs_optimizers_are_accepted(optimizer_class, dtype):
    def trained():
        torch.manual_seed(0)
        model = nn.Linear(2, 1).to(dtype)
        optimizer = optimizer_class(model.parameters(), lr=0.5)
        part = TrainStep(model, optimizer, mean_square, CURVE)
        part(BATCH.to(dtype))
        return part

    part = trained()
    part.load_state_dict(trained().state_dict())
    part(BATCH.to(dtype))


def test_load_calls_no_hook_of_all_optimizers():
    """Programs count updates by such a hook."""
    updates = []

    def count(optimizer, args, kwargs):
        updates.append(optimizer)

    part = step()
    state = part.state_dict()
    handle = register_optimizer_step_pre_hook(count)
    try:
        part.load_state_dict(state)
        assert updates == []
        part(BATCH)
        assert updates == [part.optimizer]
    finally:
        handle.remove()
