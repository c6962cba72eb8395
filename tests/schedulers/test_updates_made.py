"""The number of updates that an optimizer's state shows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_bridge.schedulers.param_groups import updates_made

Build = Callable[[Any], torch.optim.Optimizer]

COUNTING: list[Build] = [
    torch.optim.Adagrad,  # creates its state when it is built
    torch.optim.Adam,
    lambda parameters: torch.optim.AdamW(parameters, fused=True),
    torch.optim.Adafactor,
    torch.optim.NAdam,
    torch.optim.RMSprop,
]


def train(optimizer: torch.optim.Optimizer, updates: int) -> None:
    for _ in range(updates):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize("build", COUNTING)
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_updates_are_read_before_and_after_a_load(build: Build, updates: int) -> None:
    optimizer = build(parameters())
    train(optimizer, updates)
    assert updates_made(optimizer) == updates
    loaded = build(parameters())
    loaded.load_state_dict(optimizer.state_dict())
    assert updates_made(loaded) == updates


def test_a_parameter_trained_later_hides_no_update() -> None:
    first, later = parameters()
    optimizer = torch.optim.AdamW([first])
    train(optimizer, 3)
    optimizer.add_param_group({"params": [later]})
    train(optimizer, 2)
    assert updates_made(optimizer) == 5


def test_momentum_shows_updates_without_a_number() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    assert updates_made(optimizer) == 0
    train(optimizer, 1)
    assert updates_made(optimizer) is None
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()  # as a TrainStep creates it
    assert updates_made(optimizer) == 0


def test_states_that_prove_nothing_count_as_none() -> None:
    plain = torch.optim.SGD(parameters(), lr=0.1)
    train(plain, 3)
    assert updates_made(plain) == 0
    optimizer = torch.optim.SGD(parameters(), lr=0.1)  # stands for optimizers that create a state when built
    first, second = optimizer.param_groups[0]["params"]
    optimizer.state[first] = {"start": first.detach().clone(), "step": torch.ones(3)}
    optimizer.state[second] = {"step": torch.ones((), device="meta"), "momentum_buffer": None}
    optimizer.state["k"] = torch.tensor([4])  # pyright: ignore[reportArgumentType]
    assert updates_made(optimizer) == 0
