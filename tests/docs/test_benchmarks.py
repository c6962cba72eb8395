"""The benchmarks run in small, print every table, count correctly and leave nothing behind."""

import gc
import itertools
import json
import re
import runpy
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from support.docs.pages import PAGES
from support.forecasts.law_runs import csv_of
from support.programs import EXAMPLES, Program, finish, run
from support.training.trees import equal_trees
from torch import nn

from plateau_jax import StagedCurve
from plateau_jax.forecasts.loss_law import schedule_sums

pytestmark = pytest.mark.slow

BENCHMARKS = EXAMPLES / "benchmarks"

# A script, its arguments, and how its tables or groups of rows begin.
TABLES = [
    ("curve.py", "--quick", ["JAX", "Parts of curves", "PyTorch", "NumPy", "Python", "Construction"]),
    ("scale.py", "--quick", ["ddp", "fsdp", "TrainStep", "hand-written", "Lightning Fabric", "accelerate",
                             "Activations", "A save of", "Two starts", "Encoding", "An ESTIMATE"]),
    ("checkpoints.py", "--quick", ["Checkpoints", "DCP", "torch.save"]),
    ("speedups.py", "--rounds 1 --calls 1 --rows 4 --samples 8 --layers 1",
     ["precision=", "compile=True", "AdamW(", "the loss is read at each update", "four micro-batches",
      "checkpoint_activations", "num_workers="]),
    ("step.py", "--rounds 1 --calls 2",
     ["TrainStep", "hand-written", "Lightning Fabric", "accelerate", "building a TrainStep"]),
]  # fmt: skip


@pytest.mark.parametrize(("script", "arguments", "beginnings"), TABLES, ids=[row[0] for row in TABLES])
def test_benchmark_prints_every_table(script, arguments, beginnings, tmp_path):
    lines = run(BENCHMARKS / script, *arguments.split(), folder=tmp_path).splitlines()
    assert [text for text in beginnings if not any(line.strip().startswith(text) for line in lines)] == []
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
    # Autograd keeps the inputs and the output of each ReLU; it also keeps weights, but these are parameters.
    assert benchmark["bytes_kept_for_backward"](model, lambda: model(inputs)) == 4 * 3 * (4 + 8 + 8)


def test_estimate_matches_its_formula(monkeypatch, capsys):
    benchmark = load("scale.py", monkeypatch)
    benchmark["estimate"](1e9, 0.5, 25e9, 0.8)
    lines = capsys.readouterr().out.splitlines()
    rows = {int(cells[0]): cells[1:] for line in lines if (cells := line.split())[:1] and cells[0].isdigit()}
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


@pytest.mark.gpu
def test_captured_loop_keeps_tensors_of_its_graph(monkeypatch):
    """Only the loop holds its model and optimizer; if they were freed, torch would reuse their memory."""
    benchmark = load("step.py", monkeypatch)
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


CASE = re.compile(
    r"^([12] runs?, (?:same length|longer|shorter)) +(\d+)((?: +0\.\d{4}){3}) +(\d\.\d\d)$", re.MULTILINE
)
CASES = [
    f"{runs}, {length}" for runs in ("1 run", "2 runs") for length in ("same length", "longer", "shorter")
]


def losses_of(curve: StagedCurve, steps: np.ndarray) -> np.ndarray:
    progress, noise = schedule_sums(curve, 1.0, steps)
    errors = 1 + 1e-3 * np.random.default_rng(len(steps)).standard_normal(len(steps))
    return (2.5 + (progress / 500) ** -0.4 + 0.1 * noise**0.8) * errors


def schaipp_log(total: int, decay: float, first: int, scheduler: str = "wsd", lr: float = 1e-3) -> dict:
    """Return a log as in `data/` of lr-scheduling; `first` is the step of the checkpoint where it begins."""
    config = {"dataset": "slimpajama", "model": "llama", "n_layer": 12, "n_embd": 768, "lr": lr}
    config |= {"warmup_steps": 100, "iterations": total, "wsd_fract_decay": decay, "scheduler": scheduler}
    length = int(decay * total)
    stages = [(100, 1.0), (total - 100 - length,), (length, 0.0)]
    if scheduler == "cos":
        stages = [(100, 1.0, "cosine"), (total - 100, 0.1, "cosine")]
    steps = np.arange(50, total, 50)
    losses = losses_of(StagedCurve(stages, start=0.01), steps)
    logged = {0: 11.0} | dict(zip(steps.tolist(), losses.tolist(), strict=True))
    kept = {step: loss for step, loss in logged.items() if step >= first}
    return {"config": config, "history": {"val": {"iter": list(kept), "val_loss": list(kept.values())}}}


def write_schaipp(clone: Path) -> None:
    (clone / "data").mkdir(parents=True)
    logs = [schaipp_log(6000, 0, 0), *(schaipp_log(n, 0.0, 0, "cos") for n in (3000, 6000))]
    logs += [schaipp_log(n, 0.2, int(0.7 * n)) for n in (3000, 4500, 6000)]
    for index, log in enumerate(logs):
        (clone / "data" / f"{index}.json").write_text(json.dumps(log))


def write_olmo(clone: Path) -> None:
    folder = clone / "scripts" / "scaling" / "data"
    for name, total in {"0.5xC": 3000, "1xC": 6000, "10xC": 6000}.items():
        decay = total // 10 - 1
        kinds = {
            "peteish-moreeval": [(total - 110, 0.1, "cosine"), (11,)],
            "peteish-moreeval-decay": [(total - 110 - decay,), (decay, 0.1), (11,)],
        }
        if name == "10xC":
            kinds["peteish-moreeval-const"] = [(total - 99,)]
        for kind, stages in kinds.items():
            curve, steps = StagedCurve([(99, 1.0), *stages], start=0.01), np.arange(50, total + 1, 50)
            is_kept = steps > (0.8 * total if kind.endswith("decay") else 0)
            columns = {
                "_step": steps[is_kept],
                "eval/c4_en-validation/CrossEntropyLoss": losses_of(curve, steps)[is_kept],
                "optim/learning_rate_group0": 1e-3 * curve(steps[is_kept] - 1).astype(float),
                "learning_rate_peak": [1e-3] * is_kept.sum(),
            }
            (folder / kind).mkdir(parents=True, exist_ok=True)
            (folder / kind / f"190M-{name}.csv").write_text(csv_of(**columns))


def test_benchmark_reads_both_clones(tmp_path):
    write_schaipp(tmp_path / "lr-scheduling")
    write_olmo(tmp_path / "OLMo")
    program = BENCHMARKS / "forecast.py"
    text = run(program, "lr-scheduling", "OLMo", "--pairs", 15, folder=tmp_path)
    assert "lr-scheduling: 6 runs in 1 groups; 15 fits, 1 rejected" in text  # the constant one
    assert "OLMo: 7 runs in 1 groups; 21 fits, 1 rejected" in text
    rows = CASE.findall(text)
    assert [row[0] for row in rows] == CASES * 2
    for _, _, errors, covered in rows:
        best, annealing, nearest = map(float, errors.split())
        assert best < min(annealing, nearest, 0.01)
        assert float(covered) == 1


REGRETS = re.compile(r"^(same|another) curve +(\d+)((?:  0\.\d{4} \(0\.\d{4}\)){3})$", re.MULTILINE)


def test_benchmark_of_best_peaks_prints_regrets(tmp_path):
    """The best peak is 1e-3 for all curves."""
    (tmp_path / "data").mkdir()
    kinds = ("wsd", 0.2), ("wsd", 0.6), ("cos", 0.0)
    for total, (scheduler, decay) in itertools.product((25_000, 50_000), kinds):
        for lr in (5e-4, 1e-3, 2e-3):
            log = schaipp_log(total, decay, 0, scheduler, lr)
            losses = log["history"]["val"]["val_loss"]
            log["history"]["val"]["val_loss"] = [loss + 0.02 * np.log2(lr / 1e-3) ** 2 for loss in losses]
            (tmp_path / "data" / f"{total}-{decay}-{scheduler}-{lr}.json").write_text(json.dumps(log))
    text = run(BENCHMARKS / "best_peak.py", ".", folder=tmp_path)
    assert text.startswith("3 curves of 50000 steps\n")
    same, another = REGRETS.findall(text)
    assert (same[:2], another[:2]) == (("same", "3"), ("another", "6"))
    for *_, regrets in (same, another):
        of_short, _, of_forecasts = map(float, regrets.split()[::2])
        assert max(of_short, of_forecasts) < 0.001


def test_pages_show_tables_in_the_form_of_the_benchmarks():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for data_set in ("lr-scheduling", "OLMo"):
        _, _, printed = pages.partition(f"\n{data_set}: ")
        assert [row[0] for row in CASE.findall(printed.partition("\n```")[0])[:6]] == CASES
    assert [row[0] for row in REGRETS.findall(pages)] == ["same", "another"]
