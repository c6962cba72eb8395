"""The benchmarks run in small, print every table, count correctly and leave nothing behind."""

import gc
import itertools
import json
import re
import runpy
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch
from accelerate.state import AcceleratorState
from support.docs.pages import PAGES
from support.forecasts.logs import logged
from support.programs import EXAMPLES, Program, finish, run
from support.training.steps import equal_trees
from torch import nn

pytestmark = pytest.mark.slow

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
def test_benchmark_prints_every_table(benchmark, tmp_path):
    printed = run(BENCHMARKS / benchmark.script, *benchmark.arguments.split(), folder=tmp_path)
    lines = [line.strip() for line in printed.splitlines()]
    for beginning in benchmark.beginnings:
        assert any(line.startswith(beginning) for line in lines), beginning
    assert list(tmp_path.iterdir()) == []


def load(script, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return runpy.run_path(str(BENCHMARKS / script))


def test_ctrl_c_ends_all_processes(tmp_path):
    program = Program(BENCHMARKS / "scale.py", "--rounds", 1, folder=tmp_path)
    for line in program.lines():
        if line.startswith("ddp, tiny"):
            break
    processes = psutil.Process(program.pid).children(recursive=True)
    assert len(processes) >= 2
    program.interrupt()
    assert finish(program, status=130)[-1] == "stopped"
    assert not any(process.is_running() for process in processes)


def test_kept_activations_are_counted_once(monkeypatch):
    benchmark = load("scale.py", monkeypatch)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 2))
    inputs = torch.randn(3, 4)
    # Autograd keeps the inputs and the output of each ReLU; it also keeps weights, but these are
    # parameters.
    assert benchmark["bytes_kept_for_backward"](model, lambda: model(inputs)) == 4 * 3 * (4 + 8 + 8)


def test_estimate_matches_its_formula(monkeypatch, capsys):
    benchmark = load("scale.py", monkeypatch)
    benchmark["estimate"](1e9, 0.5, 25e9, 0.8)
    lines = capsys.readouterr().out.splitlines()
    rows: dict[int, list[str]] = {}
    for line in lines:
        cells = line.split()
        if cells and cells[0].isdigit():
            rows[int(cells[0])] = cells[1:]
    assert list(rows) == [8, 16, 32, 64, 128, 256, 512, 1024]
    # 7 GB in 0.28 s, of which 0.224 s overlap; 10.5 GB in 0.42 s, of which 0.336 s overlap.
    assert rows[8] == ["7", "0.556", "90%", "16", "10.5", "0.584", "86%", "2"]
    # The collectives that can overlap take longer than the compute, which hides only 0.1 s of them.
    benchmark["estimate"](1e9, 0.1, 25e9, 1)
    (row,) = re.findall(r"^ *8 .*", capsys.readouterr().out, re.MULTILINE)
    assert row.split()[2:4] == ["0.28", "36%"]


def test_hand_written_loop_matches_train_step(monkeypatch):
    benchmark = load("step.py", monkeypatch)
    batch = benchmark["batch_for"]("cpu", 16, 32)
    step = benchmark["train_step"](benchmark["mlp"](), "cpu")
    by_hand = benchmark["ByHand"](benchmark["mlp"](), "cpu")
    curve_step = 0
    for _ in range(20):
        result, (*values, counts) = step(batch), by_hand(batch)
        assert equal_trees(list(result[:3]), values)
        counters = [int(result.curve_step), int(result.applied), int(result.skipped)]
        assert counters == [curve_step, *counts.tolist()[1:]]
        curve_step = int(counts[0])


def not_compiled(function):
    return function


@pytest.fixture
def fresh_accelerate():
    """accelerate has one state per process: the first Accelerator decides the precision."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.usefixtures("fresh_accelerate")
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


@pytest.mark.gpu
def test_captured_loop_keeps_tensors_of_its_graph(monkeypatch):
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
        fillers = [
            torch.full_like(parameter, 7.0) for parameter in eager.parameters for _ in range(4)
        ]
        assert equal_trees(captured(batch), [*eager(batch)])
        assert all((tensor == 7).all() for tensor in fillers)


CASE = re.compile(
    r"^([12] runs?, (?:same length|longer|shorter)) +(\d+)((?: +0\.\d{4}){3}) +(\d\.\d\d)$",
    re.MULTILINE,
)
CASES = [
    f"{runs}, {length}"
    for runs in ("1 run", "2 runs")
    for length in ("same length", "longer", "shorter")
]
REGRETS = re.compile(r"^(same|another) curve +(\d+)((?:  0\.\d{4} \(0\.\d{4}\)){3})$", re.MULTILINE)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with logs as those of lr-scheduling, whose best peak is 1e-3 for all curves."""
    curve_of = load("forecast.py", monkeypatch)["schaipp_curve"]
    (tmp_path / "data").mkdir()
    for total, scheduler, lr in itertools.product(
        (25_000, 50_000), ("wsd", "cos"), (5e-4, 1e-3, 2e-3)
    ):
        config = {"dataset": "slimpajama", "model": "llama", "n_layer": 12, "n_embd": 768, "lr": lr}
        config |= {
            "warmup_steps": 100,
            "iterations": total,
            "wsd_fract_decay": 0.2,
            "scheduler": scheduler,
        }
        run = logged(curve_of(config), 500)
        losses = run.losses + 0.02 * np.log2(lr / 1e-3) ** 2
        history = {"val": {"iter": run.steps.tolist(), "val_loss": losses.tolist()}}
        log = {"config": config, "history": history}
        (tmp_path / "data" / f"{total}-{scheduler}-{lr}.json").write_text(json.dumps(log))
    return tmp_path


def test_benchmarks_of_forecasts_print_their_tables(clone):
    text = run(BENCHMARKS / "forecast.py", ".", "--pairs", 15, folder=clone)
    rows = CASE.findall(text)
    assert [row[0] for row in rows] == CASES
    for _, _, errors, covered in rows:
        best, annealing, nearest = map(float, errors.split())
        assert best < min(annealing, nearest, 0.01)
        assert float(covered) == 1
    text = run(BENCHMARKS / "best_peak.py", ".", folder=clone)
    assert text.startswith("2 curves of 50000 steps\n")
    same, another = REGRETS.findall(text)
    assert (same[:2], another[:2]) == (("same", "2"), ("another", "2"))
    for *_, regrets in (same, another):
        of_short, _, of_forecasts = map(float, regrets.split()[::2])
        assert max(of_short, of_forecasts) < 0.001


def test_pages_show_tables_in_the_form_of_the_benchmarks():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for data_set in ("lr-scheduling", "OLMo"):
        _, _, printed = pages.partition(f"\n{data_set}: ")
        assert [row[0] for row in CASE.findall(printed.partition("\n```")[0])[:6]] == CASES
    assert [row[0] for row in REGRETS.findall(pages)] == ["same", "another"]
