"""Programs on the pages whose curves do not move with every update: fp16, tokens, hold rules."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.docs.pages import programs
from support.schedulers.runs import learning_rate
from support.trainers.trainers import (
    COUNTS_TOKENS,
    PAGE_CURVE,
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
def use_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


# Skipped updates.


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path: Path) -> None:
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
def record_lrs_and_batches() -> Generator[UpdatesOfPages]:
    """Record the learning rates, and the rows that the first layer gets of each micro-batch."""
    batches: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if isinstance(module, nn.Linear) and module.in_features == 8:
            batches.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with record_lrs() as lrs:
            yield UpdatesOfPages(lrs, batches)
    finally:
        handle.remove()


def count_tokens(batches: list[Tensor], rows: Tensor, tokens: Tensor) -> list[int]:
    """Return the tokens of each micro-batch, given those of each row of the data."""
    tokens_of_row = {}
    for row, count in zip(rows, tokens, strict=True):
        tokens_of_row[row.numpy().tobytes()] = int(count)
    return [sum(tokens_of_row[row.numpy().tobytes()] for row in batch) for batch in batches]


COUNTING_TOKENS = [
    program.heading
    for program in programs()
    if program.resumes and program.heading.endswith(", counting tokens")
]


@pytest.mark.parametrize("heading", COUNTING_TOKENS)
def test_program_that_counts_tokens_resumes(heading: str, tmp_path: Path) -> None:
    """A step of the curve is 1024 tokens, and an update has two micro-batches."""
    uninterrupted, resumed = run_and_resume(heading, tmp_path, record_lrs_and_batches)
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


def test_lightning_with_the_same_count_in_each_update(tmp_path: Path) -> None:
    changes = {
        "clock=DataClock(UNIT)": "clock=DataClock(UNIT, count=5000)",
        COUNTS_TOKENS: "",
    }
    heading = "PyTorch Lightning, counting tokens"
    run = train(heading, tmp_path, changes=changes, record=record_lrs)
    curve = run.names["curve"]
    steps = [5000 * update // 1024 for update in range(200)]
    assert run.recorded == [[learning_rate(1e-2, curve, step)] for step in steps]


def test_lightning_with_a_hold_rule(tmp_path: Path) -> None:
    """Every loss is below 1000, so the curve is held at its first step for 50 updates."""
    changes = changes_to_hold("HoldBelow(1000.0, 50)")
    heading = "PyTorch Lightning, counting tokens"
    run = train(heading, tmp_path, changes=changes, record=record_lrs)
    curve = run.names["curve"]
    steps = [max(update - 50, 0) for update in range(200)]
    assert run.recorded == [[learning_rate(1e-2, curve, step)] for step in steps]
