"""The benchmark of the training step runs: its hand-written loop does what `TrainStep` does, bit for bit."""

import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "examples" / "benchmark_step.py"


@pytest.fixture(scope="module")
def benchmark():
    return runpy.run_path(str(SCRIPT))


def test_the_hand_written_loop_is_the_same_update(benchmark):
    batch = benchmark["batch_for"]("cpu", 16, 32)
    step = benchmark["train_step"](benchmark["mlp"](), "cpu")
    by_hand = benchmark["ByHand"](benchmark["mlp"](), "cpu")
    for _ in range(20):
        for one, other in zip(step(batch), by_hand(batch), strict=True):
            assert torch.equal(one, other)


def test_it_prints_every_contender(benchmark, capsys):
    benchmark["main"](["--rounds", "1", "--calls", "2"])
    printed = capsys.readouterr().out
    for name in ("TrainStep", "hand-written", "Lightning Fabric", "accelerate"):
        assert name in printed
    assert torch.cuda.is_available() or "No GPU here" in printed
