"""What a CUDA graph cannot hold is rejected, and nothing changes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import check_error, each_row
from support.training.cuda_graphs.graphs import Sums, captured_step, gpu_step, on_gpu, without_cuda
from support.training.models import Net, batches
from support.training.optimizers import OTHERS, make_optimizer
from support.training.steps import equal_trees, train
from torch import Tensor

from torch_bridge.training.steppers import check_capturable

ONES, NEEDS = torch.ones(2), "cuda_graph=True needs"


def computed() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


@each_row(
    [
        (lambda graphs: graphs([{"x": ONES}, {"x": torch.ones(2, device="meta")}]), ValueError,
         "tensor on meta", "on cpu"),
        (lambda graphs: graphs([{"x": ONES, "more": ONES.to_sparse()}]), ValueError, "torch.sparse_coo",
         "dense"),
        (lambda graphs: graphs([{"x": ONES, "more": computed()}]), ValueError, "another model computed",
         "detach"),
        (lambda graphs: graphs([{"x": ONES, "more": [np.ones(2)]}]), ValueError, "holds a ndarray"),
        (lambda graphs: graphs([{"x": ONES, "more": {1}}]), ValueError, "holds a set"),
    ]
)  # fmt: skip
def test_batch_that_a_graph_would_keep(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cuda(monkeypatch)
    sums = Sums()
    check_error(row, graphs=sums.graphs)
    assert sums.runs == 0
    assert sums.graphs([{"x": ONES}])[1] == 1


def check(name: str, **options: Any) -> None:
    check_capturable(make_optimizer(name, Net(), **options))


@each_row(
    [
        *((partial(check, name), ValueError, NEEDS, "capturable=True") for name in ("adam", "adamw")),
        *((partial(check, name), ValueError, NEEDS, "fused=True",
           OTHERS[name][0].__name__) for name in OTHERS),
        (lambda: check("momentum", dampening=0.5), ValueError, NEEDS, "dampening"),
    ]
)  # fmt: skip
def test_optimizer_that_cannot_be_captured(row: Any) -> None:
    check_error(row)


def test_step_rejects_uncapturable_settings(device: str) -> None:
    captured, eager = captured_step(device), gpu_step(device=device)
    group, data = captured.optimizer.param_groups[0], on_gpu(batches(3), device)
    for name in ("fused", "capturable", "fused"):
        group[name] = False
        with pytest.raises(ValueError, match=f"{NEEDS} .*{name}="):
            captured(data[0])
        group[name] = True
        assert equal_trees(train(captured, data), train(eager, data))
