"""The benchmarks run in small and leave nothing behind; they compare equal training runs."""

import gc
import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from support.forecasts.logs import logged
from support.programs import EXAMPLES, run
from support.trees import equal_trees

from plateau_jax import StagedCurve

pytestmark = pytest.mark.slow

Config = dict[str, Any]

BENCHMARKS = EXAMPLES / "benchmarks"

SMALL = {
    "curve.py": "--quick",
    "scale.py": "--quick",
    "checkpoints.py": "--quick",
    "block_means.py": "--width 32 --rounds 1",
    "speedups.py": "--rounds 1 --calls 1 --rows 4 --samples 8 --layers 1",
    "step.py": "--rounds 1 --calls 2",
    "gpt2.py": "--tiny",
    "several_lengths.py": "--tiny --seeds 2 --processes 1",
}
"""The arguments of a small run, by script."""


@pytest.mark.parametrize("script", SMALL)
def test_benchmark_runs(script: str, tmp_path: Path) -> None:
    assert run(BENCHMARKS / script, *SMALL[script].split(), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def load(script: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / script))


def test_hand_written_loop_matches_train_step(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load("step.py", monkeypatch)
    batch = benchmark["batch_for"]("cpu", 16, 32)
    train_step = benchmark["make_train_step"](benchmark["mlp"](), "cpu")
    by_hand = benchmark["ByHand"](benchmark["mlp"](), "cpu")
    curve_step = 0
    for _ in range(20):
        result = train_step(batch)
        *values, counts = by_hand(batch)
        following_step, applied, skipped = counts.tolist()
        assert equal_trees(list(result[:3]), values)
        assert int(result.curve_step) == curve_step
        assert int(result.applied) == applied
        assert int(result.skipped) == skipped
        curve_step = following_step


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """accelerate has one state per process: the first Accelerator decides the precision."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.usefixtures("fresh_accelerate")
def test_all_ways_train_gpt2_alike(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.gpu
def test_captured_loop_keeps_tensors_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the loop holds its model and optimizer; once freed, torch would reuse their memory."""
    benchmark = load("step.py", monkeypatch)
    batch = benchmark["batch_for"]("cuda", 16, 32)
    eager = benchmark["ByHand"](benchmark["mlp"](), "cuda")
    captured = benchmark["Captured"](benchmark["ByHand"](benchmark["mlp"](), "cuda"), batch)
    gc.collect()
    torch.cuda.empty_cache()
    for _ in range(3):  # the captured loop does three updates before it captures
        eager(batch)
    for _ in range(5):
        fillers = [torch.full_like(parameter, 7.0) for parameter in 4 * list(eager.parameters)]
        assert equal_trees(captured(batch), list(eager(batch)))
        for filler in fillers:
            assert (filler == 7).all()


def log_of_run(schaipp_curve: Callable[[Config], StagedCurve], config: Config) -> dict[str, Any]:
    """Return a log as those of lr-scheduling; the best peak is 1e-3."""
    run = logged(schaipp_curve(config), 500)
    losses = run.losses + 0.02 * np.log2(config["lr"] / 1e-3) ** 2
    history = {"val": {"iter": run.steps.tolist(), "val_loss": losses.tolist()}}
    return {"config": config, "history": history}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with logs, as a clone of lr-scheduling has."""
    schaipp_curve = load("forecast.py", monkeypatch)["schaipp_curve"]
    folder = tmp_path / "data"
    folder.mkdir()
    for total in (25_000, 50_000):
        for scheduler in ("wsd", "cos"):
            for lr in (5e-4, 1e-3, 2e-3):
                config = {
                    "dataset": "slimpajama",
                    "model": "llama",
                    "n_layer": 12,
                    "n_embd": 768,
                    "lr": lr,
                    "warmup_steps": 100,
                    "iterations": total,
                    "wsd_fract_decay": 0.2,
                    "scheduler": scheduler,
                }
                log = log_of_run(schaipp_curve, config)
                file = folder / f"{total}-{scheduler}-{lr}.json"
                file.write_text(json.dumps(log), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("script", "arguments"), [("forecast.py", ["--pairs", 15]), ("best_peak.py", [])]
)
def test_benchmark_of_forecasts_reads_a_clone(
    script: str, arguments: list[Any], clone: Path
) -> None:
    printed = run(BENCHMARKS / script, ".", *arguments, folder=clone)
    assert "nan" not in printed
    assert len(printed.splitlines()) >= 4
