"""Figures on the pages against their measurements, and the commands of the design page."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from support.docs.pages import PAGES, sections
from support.programs import EXAMPLES

from plateau_jax import PlateauCurve, StagedCurve, compare
from plateau_jax.__main__ import main
from torch_bridge import Checkpoints, TrainStep

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
TEXT = "\n".join(TEXTS.values())


def test_bounds_next_to_published_losses_match_curves():
    """The published runs have 50 000 steps, with a warmup of 300."""
    rows = re.findall(
        r"^\| ([\d.]+) %, (linear|1-sqrt) \| ([\d.]+) \| [\d.]+ \|$", TEXT, re.MULTILINE
    )
    curves = []
    for percent, shape, _ in rows:
        steps = round(500 * float(percent))
        curves.append(StagedCurve([(300, 1.0), (49_700 - steps,), (steps, 0.0, shape)]))
    assert (
        [f"{bound:.3f}" for bound in compare(curves).bounds]
        == [figure for *_, figure in rows]
        != []
    )


def test_figures_of_the_notebook_are_those_it_printed():
    """Those in lines that link to it, and the table of plateaus."""
    notebook = json.loads((EXAMPLES / "choosing_a_curve.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    printed = "".join(line for output in outputs for line in output.get("text", []))
    quoting = [line for line in TEXT.splitlines() if "the notebook](" in line.lower()]
    figures = [figure for line in quoting for figure in re.findall(r"\d\.\d+", line)]
    assert set(figures) <= set(re.findall(r"\d\.\d+", printed))
    assert figures
    table = re.findall(r"^\| (\w+ plateau) \|(.+)\|$", TEXT, re.MULTILINE)
    assert table
    for name, cells in table:
        at_one_peak, apart, best, best_apart = cells.replace("−", "-").split("|")
        loss, peak = best.strip().split(", at ")
        for start, figures in (
            (f"{name} ", f"{at_one_peak} {apart}"),
            (f"{name}, {peak} ", f"{loss} {best_apart}"),
        ):
            (line,) = [line for line in printed.splitlines() if line.startswith(start)]
            assert line.removeprefix(start).split("lower")[0].split() == figures.split()


BYTES = [
    pytest.param(call, int(training), int(checkpoint), id=call)
    for calls, training, checkpoint in re.findall(
        r"^\| (`\w+\(.*\)`) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE
    )
    for call in re.findall(r"`(.+?)`", calls)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("call", "training", "checkpoint"), BYTES)
def test_bytes_per_parameter(call, training, checkpoint, dtype, tmp_path):
    """The table has those of float32; bfloat16 needs half of each."""
    size = 256
    model = torch.nn.Linear(size, size, bias=False, dtype=dtype)
    name, settings = call.removesuffix(")").split("(")
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **eval(f"dict({settings})"))
    gradients = []
    model.weight.register_post_accumulate_grad_hook(lambda weight: gradients.append(weight.grad))
    step = TrainStep(model, optimizer, lambda model, batch: model(batch).sum(), PlateauCurve(10))
    step(torch.ones(1, size, dtype=dtype))
    tensors = [model.weight, *gradients]
    tensors += [value for value in optimizer.state[model.weight].values() if torch.is_tensor(value)]
    assert (
        round(sum(tensor.nbytes for tensor in tensors) / size**2) == dtype.itemsize * training // 4
    )

    Checkpoints(tmp_path).save(1, step=step, wait=True)
    written = sum(path.stat().st_size for path in Path(tmp_path).rglob("*") if path.is_file())
    assert 0 <= written - dtype.itemsize * checkpoint // 4 * size**2 < 20_000


DESIGN_COMMANDS = [
    line
    for page in PAGES
    for section in sections(page)
    for block in section.blocks
    if block.language == "sh"
    for line in block.code.splitlines()
    if line.startswith("python -m plateau_jax ") and "--design" in line
]


@pytest.mark.parametrize("command", DESIGN_COMMANDS)
def test_commands_open_the_design_page(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("curve.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(PlateauCurve(100).to_dict()))
    opened = []
    monkeypatch.setattr(
        "plateau_jax.design.server.serve", lambda curves, *_, **__: opened.extend(curves)
    )
    assert main(shlex.split(command, comments=True)[3:]) == 0
    assert opened
