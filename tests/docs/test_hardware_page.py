"""docs/hardware.md: the bytes per parameter are those of torch's optimizers and of saved checkpoints."""

import re
from pathlib import Path

import pytest
import torch
from support.docs.pages import ROOT

from plateau_jax import PlateauCurve
from torch_bridge import Checkpoints, TrainStep

PAGE = ROOT / "docs" / "hardware.md"
SIZE = 512
ROWS = re.findall(r"^\| (`.+`) \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
PROGRAMS = [
    pytest.param(call, dtype, dtype.itemsize * int(training) // 4, dtype.itemsize * int(checkpoint) // 4)
    for calls, training, checkpoint in ROWS
    for call in re.findall(r"`(.+?)`", calls)
    for dtype in (torch.float32, torch.bfloat16)  # the page: half of each number
]


def make_optimizer(call, parameters):
    name, settings = call.removesuffix(")").split("(")
    return getattr(torch.optim, name)(parameters, lr=1e-3, **eval(f"dict({settings})"))


def test_table_has_every_row():
    assert len(ROWS) > 4


@pytest.mark.parametrize(("call", "dtype", "training", "checkpoint"), PROGRAMS)
def test_bytes_per_parameter(call, dtype, training, checkpoint, tmp_path):
    model = torch.nn.Linear(SIZE, SIZE, bias=False, dtype=dtype)
    optimizer = make_optimizer(call, model.parameters())
    gradients = []
    model.weight.register_post_accumulate_grad_hook(lambda weight: gradients.append(weight.grad))
    step = TrainStep(model, optimizer, lambda model, batch: model(batch).sum(), PlateauCurve(10))
    step(torch.ones(1, SIZE, dtype=dtype))
    tensors = [model.weight, *gradients]
    tensors += [value for value in optimizer.state[model.weight].values() if torch.is_tensor(value)]
    assert round(sum(tensor.nbytes for tensor in tensors) / SIZE**2) == training

    Checkpoints(tmp_path).save(1, step=step, wait=True)
    written = sum(path.stat().st_size for path in Path(tmp_path).rglob("*") if path.is_file())
    assert round(written / SIZE**2) == checkpoint
    assert written - checkpoint * SIZE**2 < 20_000
