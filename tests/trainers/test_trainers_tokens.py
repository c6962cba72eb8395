"""The page's programs on a clock of tokens: uninterrupted and resumed."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch
from support.schedulers.runs import learning_rate
from support.trainers.trainers import (
    FOLDER_WARNING,
    LIGHTNING_WARNING,
    PAGE_PEAK,
    record_lrs,
    run_and_resume,
    same_weights,
)
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    pytest.mark.filterwarnings(FOLDER_WARNING),
]


@contextmanager
def record_lrs_and_rows() -> Generator[tuple[list[list[float]], list[Tensor]], None, None]:
    """Record the learning rates of updates, and the rows of each micro-batch as the first layer gets them."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if isinstance(module, nn.Linear) and module.in_features == 8:
            seen.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with record_lrs() as used:
            yield used, seen
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "heading", ["PyTorch Lightning", "Lightning Fabric", "Hugging Face Trainer", "accelerate"]
)
def test_resume_matches_uninterrupted_run(heading, tmp_path):
    (uninterrupted, (used, seen)), (resumed, (used_later, _)) = run_and_resume(
        f"{heading}, counting tokens", tmp_path, record_lrs_and_rows
    )
    names = uninterrupted.names
    tokens_of = {
        row.numpy().tobytes(): int(count) for row, count in zip(names["rows"], names["tokens"], strict=True)
    }
    micro_batches = [sum(tokens_of[row.numpy().tobytes()] for row in batch) for batch in seen]
    assert len(used) == 200
    assert len(micro_batches) == 400
    consumed = 0
    for update, (lr, *other_lrs) in enumerate(used):
        assert lr == learning_rate(PAGE_PEAK, names["curve"], consumed // 1024)
        assert set(other_lrs) <= {lr}
        consumed += sum(micro_batches[2 * update : 2 * update + 2])
    assert consumed == int(names["tokens"].sum())
    assert used_later == used[100:]
    assert same_weights(resumed.names["model"], names["model"])
    assert torch.equal(resumed.names["rows"], names["rows"])
