"""The benchmark of the training step runs, and its hand-written loop gives the bits of `TrainStep`."""

import gc
import runpy
import sys
from unittest.mock import patch

import pytest
import torch
from support.programs import EXAMPLES
from support.training.trees import equal_trees

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def benchmark():
    with patch.object(sys, "path", [str(EXAMPLES / "benchmarks"), *sys.path]):
        return runpy.run_path(str(EXAMPLES / "benchmarks" / "step.py"))


def test_hand_written_loop_matches_train_step(benchmark):
    batch = benchmark["batch_for"]("cpu", 16, 32)
    step = benchmark["train_step"](benchmark["mlp"](), "cpu")
    by_hand = benchmark["ByHand"](benchmark["mlp"](), "cpu")
    clock = 0
    for _ in range(20):
        result, (*values, counts) = step(batch), by_hand(batch)
        assert equal_trees(list(result[:3]), values)
        assert [int(result.clock), int(result.applied), int(result.skipped)] == [clock, *counts.tolist()[1:]]
        clock = int(counts[0])


@pytest.mark.gpu
def test_captured_loop_keeps_tensors_of_its_graph(benchmark):
    """Only the loop holds its model and optimizer; if they were freed, torch would reuse their memory."""
    batch = benchmark["batch_for"]("cuda", 16, 32)
    eager = benchmark["ByHand"](benchmark["mlp"](), "cuda")
    captured = benchmark["Captured"](benchmark["ByHand"](benchmark["mlp"](), "cuda"), batch)
    gc.collect()
    torch.cuda.empty_cache()
    for _ in range(3):  # the captured loop does three updates before it captures
        eager(batch)
    for _ in range(5):
        fillers = [torch.full_like(parameter, 7.0) for parameter in eager.parameters for _ in range(4)]
        assert equal_trees(captured(batch), [*eager(batch)])
        assert all((tensor == 7).all() for tensor in fillers)


def test_benchmark_prints_every_contender(benchmark, capsys):
    benchmark["main"](["--rounds", "1", "--calls", "2"])
    printed = capsys.readouterr().out
    for name in ("TrainStep", "hand-written", "Lightning Fabric", "accelerate", "building a TrainStep"):
        assert name in printed
    assert torch.cuda.is_available() or "No GPU here" in printed
