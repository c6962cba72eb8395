"""How many updates the state of an optimizer shows, made or loaded."""

from functools import partial

import pytest
import torch
from support.schedulers.runs import optimizer_with
from support.training.steps import through_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RMSprop

from torch_bridge.groups.optimizers import updates_made

FUSED_ADAMW = partial(AdamW, fused=True)


@pytest.mark.parametrize("kind", [Adagrad, Adam, FUSED_ADAMW, Adafactor, NAdam, RMSprop])
@pytest.mark.parametrize("updates", [0, 1, 7])
def test_updates_made_are_read_before_and_after_a_load(kind, updates):
    optimizer = optimizer_with([0.1], kind)
    for _ in range(updates):
        optimizer.step()
    assert updates_made(optimizer) == updates
    loaded = optimizer_with([0.1], kind)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    assert updates_made(loaded) == updates


KINDS_WITH_STATES = [Adafactor, Adagrad, FUSED_ADAMW, RMSprop, partial(SGD, momentum=0.9)]


@pytest.mark.parametrize("kind", KINDS_WITH_STATES)
def test_states_created_for_a_save_show_no_updates(kind):
    """torch steps an optimizer without states once, with gradients and learning rates of zero."""
    model = torch.nn.Linear(4, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    get_optimizer_state_dict(model, optimizer)
    assert optimizer.state
    assert updates_made(optimizer) == 0
    loaded = kind(model.parameters(), lr=0.1)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    assert updates_made(loaded) == 0

    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    assert updates_made(optimizer) != 0
