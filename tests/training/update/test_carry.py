"""The recurrent state is kept in buffers of its own, which loads and resets write to."""

import pytest
import torch
from support.training.models import Recurrent, batches, carried_loss
from support.training.steps import make_step, train
from support.training.trees import equal_trees
from torch.utils import _pytree as pytree


@pytest.mark.parametrize("cells", ["LSTM", "GRU"])
def test_carry_buffers_are_reused_and_reset(cells: str) -> None:
    given_carry = Recurrent(cells).initial()
    leaves = pytree.tree_leaves(given_carry)
    for leaf in leaves:
        leaf.fill_(0.25)
    step = make_step("adamw", Recurrent(cells), carried_loss, carry=given_carry)
    assert step._carry is not None
    places = [buffer.data_ptr() for buffer in step._carry.buffers]
    initial = step.state_dict()["carry"]
    train(step, batches(5, time=3))
    assert not equal_trees(step.state_dict()["carry"], initial)
    for leaf in leaves:
        leaf.fill_(7)  # the step must have copied the caller's tensors
    step.reset_carry()
    assert equal_trees(step.state_dict()["carry"], initial)
    assert equal_trees(initial, [torch.full((1, 4, 5), 0.25)] * len(leaves))
    step.load_state_dict(step.state_dict())
    train(step, batches(2, time=3))
    assert [buffer.data_ptr() for buffer in step._carry.buffers] == places
    assert not any(buffer.requires_grad for buffer in step._carry.buffers)
