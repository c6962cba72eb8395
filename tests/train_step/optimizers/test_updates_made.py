"""Which states of an optimizer show no updates; `test_warnings` tests runs with some."""

from functools import partial

import pytest
import torch
from support.training.steps import through_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD, Adafactor, Adagrad, AdamW, RMSprop

from torch_bridge.groups.optimizers import updates_made

FUSED_ADAMW = partial(AdamW, fused=True)
MOMENTUM = partial(SGD, momentum=0.9)


@pytest.mark.parametrize("kind", [Adafactor, Adagrad, FUSED_ADAMW, RMSprop, MOMENTUM])
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
    for _ in range(2):  # of a single one, the state may be that of a save
        optimizer.step()
    assert updates_made(optimizer) != 0
