"""Programs on the pages whose curves do not move with every update: fp16, tokens, hold rules."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from support.schedulers.runs import learning_rate
from support.trainers.trainers import (
    COUNTING,
    PAGE_CURVE,
    changes_to_count,
    changes_to_hold,
    expected_lrs,
    record_lrs,
    resumes_in_its_folder,
    run_and_resume,
    train,
)
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

pytestmark = [
    pytest.mark.slow,
    resumes_in_its_folder,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def use_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


# Skipped updates.


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    """With a gradient scaler, since fp16 itself needs a GPU. The third update is skipped."""
    build = "accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)\n"
    changes = {
        build: f"{build}accelerator.scaler = torch.amp.GradScaler('cpu')\n",
        "accelerator.backward(loss)": (
            "accelerator.backward(loss * torch.inf if update == 2 else loss)"
        ),
    }
    run = train("accelerate", tmp_path, changes=changes, record=record_lrs, interrupt_after=1)
    # 20 updates, of which the hook has not seen the skipped one.
    assert run.recorded == expected_lrs(PAGE_CURVE, range(19))


# Clocks.


@dataclass
class UpdatesOfPages:
    lrs: list[list[float]]
    batches: list[Tensor]
    """The rows of each micro-batch."""


@contextmanager
def record_lrs_and_batches():
    """Record the learning rates, and the rows that the first layer gets of each micro-batch."""
    batches = []

    def note(module, inputs):
        if isinstance(module, nn.Linear) and module.in_features == 8:
            batches.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with record_lrs() as lrs:
            yield UpdatesOfPages(lrs, batches)
    finally:
        handle.remove()


def count_tokens(batches, rows, tokens):
    """Return the tokens of each micro-batch, given those of each row of the data."""
    tokens_of_row = {}
    for row, count in zip(rows, tokens, strict=True):
        tokens_of_row[row.numpy().tobytes()] = int(count)
    return [sum(tokens_of_row[row.numpy().tobytes()] for row in batch) for batch in batches]


@pytest.mark.parametrize("heading", COUNTING)
def test_program_that_counts_tokens_resumes(heading, tmp_path):
    """A step of the curve is 1024 tokens, and an update has two micro-batches."""
    changes = changes_to_count(heading)
    uninterrupted, resumed = run_and_resume(heading, tmp_path, record_lrs_and_batches, changes)
    names = uninterrupted.names
    updates = uninterrupted.recorded
    tokens = count_tokens(updates.batches, names["rows"], names["tokens"])
    assert len(updates.lrs) == 200
    assert len(tokens) == 400
    consumed = 0
    for update, lrs in enumerate(updates.lrs):
        lr = learning_rate(1e-2, names["curve"], consumed // 1024)
        assert set(lrs) == {lr}
        consumed += tokens[2 * update] + tokens[2 * update + 1]
    assert consumed == int(names["tokens"].sum())
    assert resumed.recorded.lrs == updates.lrs[100:]
    assert resumed.has_model_of(uninterrupted)
    assert torch.equal(resumed.names["rows"], names["rows"])


def test_lightning_with_the_same_count_in_each_update(tmp_path):
    changes = changes_to_count("PyTorch Lightning")
    del changes["    def configure_optimizers"]  # Lightning's own method steps the scheduler
    changes["lambda_lr(optimizer, curve)"] = (
        "lambda_lr(optimizer, curve, clock=DataClock(UNIT, count=5000))"
    )
    run = train("PyTorch Lightning", tmp_path, changes=changes, record=record_lrs)
    curve = run.names["curve"]
    steps = [5000 * update // 1024 for update in range(200)]
    assert run.recorded == [[learning_rate(1e-2, curve, step)] for step in steps]


def test_lightning_with_a_hold_rule(tmp_path):
    """Every loss is below 1000, so the curve is held at its first step for 50 updates."""
    changes = changes_to_hold("HoldBelow(1000.0, 50)")
    run = train("PyTorch Lightning", tmp_path, changes=changes, record=record_lrs)
    curve = run.names["curve"]
    steps = [max(update - 50, 0) for update in range(200)]
    assert run.recorded == [[learning_rate(1e-2, curve, step)] for step in steps]
