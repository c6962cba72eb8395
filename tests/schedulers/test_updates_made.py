"""How many updates the state of an optimizer shows, made or loaded."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers.runs import optimizer_with
from support.training.optimizers import ADAGRAD_RECREATES_STATES
from support.training.steps import through_file
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RMSprop

from torch_bridge.param_groups import loaded_updates, updates_made

FUSED_ADAMW: Any = partial(AdamW, fused=True)


@pytest.mark.parametrize("kind", [Adagrad, Adam, FUSED_ADAMW, Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_updates_made_are_read_before_and_after_a_load(kind: Any, updates: int) -> None:
    optimizer = optimizer_with([0.1], kind)
    for _ in range(updates):
        optimizer.step()
    assert updates_made(optimizer) == updates
    assert loaded_updates(optimizer) == 0
    loaded = optimizer_with([0.1], kind)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    assert updates_made(loaded) == updates
    assert loaded_updates(loaded) == updates


@pytest.mark.parametrize("kind", [Adagrad, Adam, FUSED_ADAMW, Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_parameter_that_is_trained_later_hides_no_update(kind: Any, updates: int) -> None:
    if kind is Adagrad and not ADAGRAD_RECREATES_STATES:
        return  # it could not train another parameter
    optimizer = optimizer_with([0.1], kind)
    for _ in range(updates):
        optimizer.step()
    (trained_later,) = optimizer_with([0.1]).param_groups[0]["params"]
    optimizer.add_param_group({"params": [trained_later]})
    optimizer.step()
    optimizer.step()
    assert updates_made(optimizer) == updates + 2


def parameters_of(optimizer: torch.optim.Optimizer) -> Sequence[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_state_of_a_fresh_optimizer_shows_no_updates() -> None:
    assert updates_made(optimizer_with([0.1, 0.1])) == 0


@pytest.mark.parametrize("momentum", [torch.zeros(3), None])
def test_states_that_prove_nothing_count_as_none(momentum: Any) -> None:
    optimizer = optimizer_with([0.1, 0.1])
    first, second = parameters_of(optimizer)
    optimizer.state[first] = {"start": torch.ones(3), "step": torch.ones(3)}
    step_without_a_value = torch.ones((), device="meta")
    optimizer.state[second] = {"step": step_without_a_value, "momentum_buffer": momentum}
    optimizer.state["k"] = torch.tensor([4])
    assert updates_made(optimizer) == 0


def test_group_written_by_hand_shows_no_loaded_updates() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([{"lr": 0.1, "initial_lr": 0.1, "params": [parameter]}])
    assert loaded_updates(optimizer) == 0
