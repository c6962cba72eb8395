"""The benchmarks run in small, print every table, count correctly and leave nothing behind."""

import gc
import json
import re
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from accelerate.state import AcceleratorState
from support.docs.pages import all_sections
from support.forecasts.logs import logged
from support.programs import EXAMPLES, Program, finish, run
from support.trees import equal_trees
from torch import nn

from plateau_jax import StagedCurve

pytestmark = pytest.mark.slow

Config = dict[str, Any]

BENCHMARKS = EXAMPLES / "benchmarks"


@dataclass(frozen=True)
class Benchmark:
    script: str
    arguments: str
    beginnings: list[str]
    """How its tables or groups of rows begin."""


QUICK = [
    Benchmark(
        "curve.py",
        "--quick",
        ["JAX", "Parts of curves", "PyTorch", "NumPy", "Python", "Construction"],
    ),
    Benchmark(
        "scale.py",
        "--quick",
        [
            "ddp",
            "fsdp",
            "TrainStep",
            "hand-written",
            "Lightning Fabric",
            "accelerate",
            "Activations",
            "A save of",
            "Two starts",
            "Encoding",
            "An ESTIMATE",
        ],
    ),
    Benchmark("checkpoints.py", "--quick", ["Checkpoints", "DCP", "torch.save"]),
    Benchmark(
        "block_means.py", "--width 32 --rounds 1", ["PyTorch", "JAX", "every tenth", "Bytes per"]
    ),
    Benchmark(
        "speedups.py",
        "--rounds 1 --calls 1 --rows 4 --samples 8 --layers 1",
        [
            "precision=",
            "compile=True",
            "AdamW(",
            "the loss is read at each update",
            "four micro-batches",
            "checkpoint_activations",
            "num_workers=",
        ],
    ),
    Benchmark(
        "step.py",
        "--rounds 1 --calls 2",
        ["TrainStep", "hand-written", "Lightning Fabric", "accelerate", "building a TrainStep"],
    ),
    Benchmark(
        "gpt2.py",
        "--tiny",
        [
            "lean loop, bf16",
            "TrainStep, bf16",
            "Lightning Fabric",
            "accelerate",
            "naive loop, fp32 with TF32",
        ],
    ),
    Benchmark(
        "several_lengths.py",
        "--tiny --seeds 2 --processes 1",
        [
            "mean loss",
            "cosine runs",
            "cooldowns of one run",
            "each at its best peak",
            "updates: 42",
        ],
    ),
]


@pytest.mark.parametrize("benchmark", QUICK, ids=lambda benchmark: benchmark.script)
def test_benchmark_prints_every_table(benchmark: Benchmark, tmp_path: Path) -> None:
    printed = run(BENCHMARKS / benchmark.script, *benchmark.arguments.split(), folder=tmp_path)
    for beginning in benchmark.beginnings:
        assert re.search(rf"^ *{re.escape(beginning)}", printed, re.MULTILINE), beginning
    assert list(tmp_path.iterdir()) == []


def load(script: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / script))


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    program = Program(BENCHMARKS / "scale.py", "--rounds", 1, folder=tmp_path)
    for line in program.lines():
        if line.startswith("ddp, tiny"):
            break
    processes = psutil.Process(program.pid).children(recursive=True)
    assert len(processes) >= 2
    program.interrupt()
    assert finish(program, status=130)[-1] == "stopped"
    for process in processes:
        assert not process.is_running()


def test_kept_activations_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load("scale.py", monkeypatch)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 2))
    inputs = torch.randn(3, 4)
    # Autograd keeps the inputs and the output of each ReLU; it also keeps weights, but these are
    # parameters.
    assert benchmark["bytes_kept_for_backward"](model, lambda: model(inputs)) == 4 * 3 * (4 + 8 + 8)


def estimated(printed: str) -> dict[int, list[str]]:
    """Return the figures for each number of devices."""
    figures = {}
    for line in printed.splitlines():
        cells = line.split()
        if cells and cells[0].isdigit():
            figures[int(cells[0])] = cells[1:]
    return figures


def test_estimate_matches_its_formula(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = load("scale.py", monkeypatch)
    benchmark["estimate"](1e9, 0.5, 25e9, 0.8)
    figures = estimated(capsys.readouterr().out)
    assert list(figures) == [8, 16, 32, 64, 128, 256, 512, 1024]
    # 7 GB in 0.28 s, of which 0.224 s overlap; 10.5 GB in 0.42 s, of which 0.336 s overlap.
    assert figures[8] == ["7", "0.556", "90%", "16", "10.5", "0.584", "86%", "2"]
    # The collectives that can overlap take longer than the compute, which hides only 0.1 s of them.
    benchmark["estimate"](1e9, 0.1, 25e9, 1)
    figures = estimated(capsys.readouterr().out)
    assert figures[8][1:3] == ["0.28", "36%"]


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


CASES = [
    "1 run, same length",
    "1 run, longer",
    "1 run, shorter",
    "2 runs, same length",
    "2 runs, longer",
    "2 runs, shorter",
]


@dataclass(frozen=True)
class MeanErrors:
    """A line of a table that `forecast.py` prints."""

    case: str
    fit_losses: float
    annealing_law: float
    nearest_run: float
    covered: float


def read_mean_errors(printed: str) -> list[MeanErrors]:
    """Read the lines of one of the cases; their errors have four decimals."""
    table = []
    line = r"^([12] runs?, [a-z ]+[a-z]) +\d+ +(0\.\d{4}) +(0\.\d{4}) +(0\.\d{4}) +(\d\.\d\d)$"
    for case, *figures in re.findall(line, printed, re.MULTILINE):
        table.append(MeanErrors(case, *[float(figure) for figure in figures]))
    return table


@dataclass(frozen=True)
class MeanRegrets:
    """A line of the table that `best_peak.py` prints."""

    case: str
    choices: int
    of_short_runs: float
    of_ratio: float
    of_forecasts: float


def read_mean_regrets(printed: str) -> list[MeanRegrets]:
    """Read the lines of a curve; the largest regrets are in parentheses."""
    table = []
    regret = r"  (0\.\d{4}) \(0\.\d{4}\)"
    line = rf"^(same|another) curve +(\d+){regret}{regret}{regret}$"
    for case, choices, *regrets in re.findall(line, printed, re.MULTILINE):
        table.append(MeanRegrets(case, int(choices), *[float(regret) for regret in regrets]))
    return table


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


def test_forecasts_beat_other_predictions(clone: Path) -> None:
    table = read_mean_errors(run(BENCHMARKS / "forecast.py", ".", "--pairs", 15, folder=clone))
    assert [errors.case for errors in table] == CASES
    for errors in table:
        assert errors.fit_losses < min(errors.annealing_law, errors.nearest_run, 0.01)
        assert errors.covered == 1


def test_best_peak_is_found(clone: Path) -> None:
    printed = run(BENCHMARKS / "best_peak.py", ".", folder=clone)
    assert printed.startswith("2 curves of 50000 steps\n")
    table = read_mean_regrets(printed)
    assert [(regrets.case, regrets.choices) for regrets in table] == [("same", 2), ("another", 2)]
    for regrets in table:
        assert regrets.of_short_runs < 0.001
        assert regrets.of_forecasts < 0.001


def test_page_shows_regrets_in_the_form_of_the_benchmark() -> None:
    shown = ""
    for section in all_sections():
        shown += "".join(section.code_in("console"))
    assert [regrets.case for regrets in read_mean_regrets(shown)] == ["same", "another"]
