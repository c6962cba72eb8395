"""Figures on the pages, computed again."""

import ast
import re

import pytest
import torch
from support.docs.pages import PAGES

from plateau_jax import PlateauCurve, StagedCurve, compare
from torch_bridge import Checkpoints, TrainStep

TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_bounds_next_to_published_losses_match_curves():
    """The published runs have 50 000 steps, with a warmup of 300."""
    table = re.findall(
        r"^\| ([\d.]+) %, (linear|1-sqrt) \| ([\d.]+) \| [\d.]+ \|$", TEXT, re.MULTILINE
    )
    assert table
    curves = []
    figures = []
    for percent, shape, figure in table:
        decay_steps = round(500 * float(percent))
        stable_steps = 49_700 - decay_steps
        stages = [(300, 1.0), (stable_steps,), (decay_steps, 0.0, shape)]
        curves.append(StagedCurve(stages))
        figures.append(figure)
    bounds = compare(curves).bounds
    assert [f"{bound:.3f}" for bound in bounds] == figures


def table_of_bytes():
    """Yield calls of optimizers, with the bytes per float32 parameter in training and on disk."""
    table = re.findall(r"^\| (`\w+\(.*\)`) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    for calls, training, checkpoint in table:
        for call in re.findall(r"`(.+?)`", calls):
            yield call, int(training), int(checkpoint)


def build_optimizer(call, parameters):
    """Build the optimizer of a call such as "AdamW(amsgrad=True)"."""
    tree = ast.parse(call, mode="eval").body
    settings = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords}
    optimizer_class = getattr(torch.optim, tree.func.id)
    return optimizer_class(parameters, lr=1e-3, **settings)


def sum_of_outputs(model, batch):
    return model(batch).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("call", "training", "checkpoint"), list(table_of_bytes()))
def test_bytes_per_parameter(call, training, checkpoint, dtype, tmp_path):
    """The table has those of float32; bfloat16 needs half of each."""
    size = 256
    model = torch.nn.Linear(size, size, bias=False, dtype=dtype)
    optimizer = build_optimizer(call, model.parameters())
    tensors = [model.weight]
    model.weight.register_post_accumulate_grad_hook(lambda weight: tensors.append(weight.grad))
    step = TrainStep(model, optimizer, sum_of_outputs, PlateauCurve(10))
    step(torch.ones(1, size, dtype=dtype))
    assert len(tensors) == 2
    tensors.extend(
        value for value in optimizer.state[model.weight].values() if torch.is_tensor(value)
    )
    in_training = sum(tensor.nbytes for tensor in tensors) / size**2
    assert round(in_training) == training * dtype.itemsize // 4

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, wait=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = sum(file.stat().st_size for file in files)
    in_checkpoint = checkpoint * dtype.itemsize // 4
    # The random states, the structures and the digests take the same, whatever the model.
    assert 0 <= written - in_checkpoint * size**2 < 32_000
