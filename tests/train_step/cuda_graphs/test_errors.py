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


def test_wrong_batch(graphs):
    with raises(ValueError, "tensor on meta", "on cpu"):
        graphs([{"x": ONES}, {"x": torch.ones(2, device="meta")}])
    computed = torch.ones(2, requires_grad=True) * 2
    with raises(ValueError, "another model computed", "detach"):
        graphs([{"x": ONES, "more": computed}])
    with raises(ValueError, "contains a ndarray"):
        graphs([{"x": ONES, "more": [np.ones(2)]}])


def test_wrong_optimizer():
    not_capturable = make_optimizer("adamw", Net())
    parts = ["cuda_graph=True needs ", "with fused=True and", "capturable=True", "is AdamW"]
    with raises(ValueError, *parts):
        check_capturable(not_capturable)
    not_fused = make_optimizer("rmsprop", Net())
    with raises(ValueError, "the optimizer is RMSprop"):
        check_capturable(not_fused)


def test_step_rejects_uncapturable_settings(device):
    captured = Kind().build(device=device, cuda_graph=True)
    eager = Kind().build(device=device)
    data = batches(3, device=device)
    (group,) = captured.optimizer.param_groups
    for _ in range(2):
        group["fused"] = False
        with pytest.raises(ValueError, match=r"cuda_graph=True needs .*fused=True"):
            captured(data[0])
        group["fused"] = True
        results = train(captured, data)
        expected = train(eager, data)
        assert_equal_trees(results, expected)
