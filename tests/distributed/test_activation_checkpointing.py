"""A `TrainStep` over a model with torch's activation checkpointing has the same bits as without."""

import pytest
import torch
from support.raises import raises
from support.training.models import Net, batches, carried_loss, seeded
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Stack(nn.Module):
    """Two blocks with dropout, and a state that passes through them; the first is used twice."""

    def __init__(self):
        super().__init__()
        with seeded(0):
            self.first = nn.Linear(3, 4)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.last = nn.Linear(4, 2)

    def forward(self, inputs, state):
        values = self.first(inputs)
        for index in (0, 1, 0):
            values, state = self.blocks[index](values, state=state)
        return self.last(values), state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.GRUCell(4, 4)
        self.mixer = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))

    def forward(self, inputs, *, state):
        state = self.cells(inputs, state)
        return inputs + self.mixer(state), state


def is_block(module):
    return isinstance(module, Block)


def fsdp_of_blocks(model):
    for module in filter(is_block, list(model.modules())):
        fully_shard(module)
    return fully_shard(model)


def trained(model, **options):
    """Return the results, the weights and the random state after three updates."""
    step = make_step(
        model=model, loss_fn=carried_loss, carry=torch.zeros(4, 4), max_norm=1.0, **options
    )
    with seeded(1):
        updates = zip(batches(3), batches(3, seed=1), strict=True)
        results = [step(*micro_batches) for micro_batches in updates]
        return results, step.state_dict()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("wrap", [nn.Module.train, DistributedDataParallel, fsdp_of_blocks])
def test_checkpointed_model_has_same_bits(wrap, precision):
    model = Stack()
    apply_activation_checkpointing(model, check_fn=is_block)
    runs_of_blocks = []
    model.blocks[1].cells.register_forward_hook(lambda *_: runs_of_blocks.append(1))
    expected = trained(wrap(Stack()), precision=precision)
    assert_equal_trees(trained(wrap(model), precision=precision), expected)
    assert len(runs_of_blocks) == 3 * 2 * 2  # in both passes of each micro-batch


def test_captured_step_of_a_checkpointed_model():
    model = nn.Sequential(Net())
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Net))
    with raises(ValueError, "cuda_graph=True needs a model without activation checkpointing"):
        make_step(model=model, cuda_graph=True)
