"""The benchmarks run in small and leave nothing behind; they compare equal training runs."""

import runpy

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from support.docs.pages import ROOT
from support.programs import EXAMPLES, run
from support.trees import assert_equal_trees

pytestmark = pytest.mark.slow

BENCHMARKS = EXAMPLES / "benchmarks"

SMALL = {
    "curve.py": "--quick",
    "scale.py": "--quick",
    "checkpoints.py": "--quick",
    "speedups.py": "--rounds 1 --calls 1 --rows 4 --samples 8 --layers 1",
    "step.py": "--rounds 1 --calls 2",
    "gpt2.py": "--tiny",
    "several_lengths.py": "--tiny --seeds 2 --processes 1",
    "silent_resumes.py": "",
}
"""The arguments of a small run, by script."""


# Compiling takes half a minute per script, and other tests cover it.
EAGER = {"TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.parametrize("script", SMALL)
def test_benchmark_runs(script, tmp_path):
    arguments = SMALL[script].split()
    assert run(BENCHMARKS / script, *arguments, folder=tmp_path, environment=EAGER)
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_what_schedules_say(tmp_path):
    printed = run(BENCHMARKS / "silent_resumes.py", folder=tmp_path)
    _, *table = printed.splitlines()
    assert "\n".join(table) in (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")


def load(script, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / script))


def test_hand_written_loop_matches_train_step(monkeypatch):
    benchmark = load("step.py", monkeypatch)
    batch = benchmark["batch_for"]("cpu", 16, 32)
    train_step = benchmark["make_train_step"](benchmark["mlp"](), "cpu")
    by_hand = benchmark["ByHand"](benchmark["mlp"](), "cpu")
    curve_step = 0
    for _ in range(20):
        result = train_step(batch)
        *values, counts = by_hand(batch)
        following_step, applied, skipped = counts.tolist()
        assert_equal_trees(list(result[:3]), values)
        assert int(result.curve_step) == curve_step
        assert int(result.applied) == applied
        assert int(result.skipped) == skipped
        curve_step = following_step


def not_compiled(function):
    return function


@pytest.fixture
def fresh_accelerate():
    """accelerate has one state per process: the first Accelerator decides the precision."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32")  # Fabric 2.5
def test_all_ways_train_gpt2_alike(monkeypatch):
    monkeypatch.setattr(torch, "compile", not_compiled)
    benchmark = load("gpt2.py", monkeypatch)
    size = benchmark["TINY"]
    batch = torch.randint(size.vocabulary, (2, size.context + 1), dtype=torch.int32)
    losses = {}
    for name, make in benchmark["ways"](size, batch).items():
        update = make()
        losses[name] = [float(update()) for _ in range(20)]
    expected = losses["naive loop, fp32"]
    assert expected[0] - expected[-1] > 0.1
    assert len(losses) >= 10
    for of_way in losses.values():
        np.testing.assert_allclose(of_way, expected, rtol=2e-3)
