"""Trainers on a clock of tokens, by the page's programs: whole, interrupted, and resumed."""

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from support.trainers.trainers import (
    IN_AN_OLD_FOLDER,
    OF_LIGHTNING,
    PEAK_OF_PAGE,
    rates_used,
    same_weights,
    whole_and_resumed,
)
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(OF_LIGHTNING),
    pytest.mark.filterwarnings(IN_AN_OLD_FOLDER),
]


@contextmanager
def rates_and_rows() -> Generator[tuple[list[list[float]], list[Tensor]], None, None]:
    """The rates that updates used, and the rows of each micro-batch, as the first layer sees them."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if isinstance(module, nn.Linear) and module.in_features == 8:
            seen.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with rates_used() as used:
            yield used, seen
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "heading", ["PyTorch Lightning", "Lightning Fabric", "Hugging Face Trainer", "accelerate"]
)
def test_resumed_it_is_as_uninterrupted(heading, tmp_path):
    (whole, (used, seen)), (resumed, (used_later, _)) = whole_and_resumed(
        f"{heading}, counting tokens", tmp_path, rates_and_rows
    )
    names = whole.names
    tokens_of = {
        row.numpy().tobytes(): int(count) for row, count in zip(names["rows"], names["tokens"], strict=True)
    }
    micro_batches = [sum(tokens_of[row.numpy().tobytes()] for row in batch) for batch in seen]
    assert len(used) == 200
    assert len(micro_batches) == 400
    consumed = 0
    for update, (rate, *others) in enumerate(used):
        assert rate == float(np.float32(PEAK_OF_PAGE)) * names["curve"](consumed // 1024)
        assert set(others) <= {rate}
        consumed += sum(micro_batches[2 * update : 2 * update + 2])
    assert consumed == int(names["tokens"].sum())
    assert used_later == used[100:]
    assert same_weights(resumed.names["model"], names["model"])
    assert torch.equal(resumed.names["rows"], names["rows"])
