"""The models and optimizers that a training step accepts, and its errors for others."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from support.training.steps import make_step
from torch import nn

from torch_bridge.training.optimizers.optimizers import device_of, unwrap_optimizers

_PINS = (Path(__file__).parents[2] / "versions" / "oldest.txt").read_text(encoding="utf-8")
_OLDEST = Version(re.findall(r"^torch==(\S+)", _PINS, re.MULTILINE)[0])

_ALL = {
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


@pytest.mark.parametrize("kind", sorted(_ALL, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_torch_optimizer_is_accepted_or_rejected(kind: Any) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        with pytest.raises(TypeError, match="LBFGS needs a closure"):
            unwrap_optimizers(model, optimizer)
    else:
        assert unwrap_optimizers(model, optimizer) == [optimizer]
        assert device_of([optimizer]) == torch.device("cpu")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_sgd_trains_half_precision_or_is_rejected(dtype: torch.dtype, momentum: float) -> None:
    """On a CPU torch 2.13 leaves blocks of elements unchanged: github.com/pytorch/pytorch/issues/191763."""
    models = [nn.Linear(64, 1, bias=False).to(dtype) for _ in range(2)]
    optimizers: list[torch.optim.SGD] = []
    for model, fused in zip(models, (True, False), strict=True):
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=momentum, fused=fused)
        optimizers.append(optimizer)
        for _ in range(3):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
    late = make_step(model=models[1], optimizer=optimizers[1])
    optimizers[1].param_groups[0]["fused"] = True
    if torch.allclose(models[0].weight, models[1].weight, rtol=0.01):
        version = Version(torch.__version__).release
        assert version > _OLDEST.release, "all versions have mended it: remove check_fused_sgd"
        make_step(model=models[0], optimizer=optimizers[0])
        late.load_state_dict(late.state_dict())
    else:
        with pytest.raises(ValueError, match=f"{dtype} parameters unchanged"):
            make_step(model=models[0], optimizer=optimizers[0])
        with pytest.raises(ValueError, match=f"{dtype} parameters unchanged"):
            late(None)
    models[0].float()
    make_step(model=models[0], optimizer=optimizers[0])
