"""What a CUDA graph cannot hold is rejected, and nothing changes."""

import numpy as np
import pytest
import torch
from support.raises import raises
from support.training.cuda_graphs.graphs import Sums
from support.training.kind import Kind
from support.training.models import Net, batches
from support.training.optimizers import make_optimizer
from support.training.steps import train
from support.trees import assert_equal_trees

from torch_bridge.training.train_step.steppers import check_capturable

ONES = torch.ones(2)


@pytest.fixture
def graphs(without_cuda):
    """An update that has not run, and must make its first run when the test ends."""
    sums = Sums()
    yield sums.graphs
    assert sums.runs == 0
    _, count = sums.graphs([{"x": ONES}])
    assert count == 1


@raises(ValueError, "tensor on meta", "on cpu")
def test_batch_on_another_device(graphs):
    on_meta = torch.ones(2, device="meta")
    graphs([{"x": ONES}, {"x": on_meta}])


@raises(ValueError, "another model computed", "detach")
def test_output_of_another_model_in_a_batch(graphs):
    computed = torch.ones(2, requires_grad=True) * 2
    graphs([{"x": ONES, "more": computed}])


@raises(ValueError, "contains a ndarray")
def test_array_in_a_batch(graphs):
    graphs([{"x": ONES, "more": [np.ones(2)]}])


@raises(ValueError, "cuda_graph=True needs AdamW with capturable=True")
def test_fused_optimizer_that_is_not_capturable():
    check_capturable(make_optimizer("adamw", Net()))


@raises(ValueError, "cuda_graph=True needs ", " with fused=True; the optimizer is RMSprop with ")
def test_optimizer_that_is_not_fused():
    check_capturable(make_optimizer("rmsprop", Net()))


def test_step_rejects_uncapturable_settings(device):
    captured = Kind().build(device=device, cuda_graph=True)
    eager = Kind().build(device=device)
    data = batches(3, device=device)
    (group,) = captured.optimizer.param_groups
    for _ in range(2):
        group["fused"] = False
        with pytest.raises(ValueError, match=r"cuda_graph=True needs .*fused="):
            captured(data[0])
        group["fused"] = True
        results = train(captured, data)
        expected = train(eager, data)
        assert_equal_trees(results, expected)
