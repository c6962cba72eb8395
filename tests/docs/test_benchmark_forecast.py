"""The benchmarks of forecasts read clones of their sources; the page on forecasts shows their tables."""

import csv
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.docs.pages import ROOT
from support.programs import EXAMPLES, run

from plateau_jax import StagedCurve
from plateau_jax.forecasts.lr_sums import schedule_sums

CASE = re.compile(
    r"^([12] runs?, (?:same length|longer|shorter)) +(\d+)((?: +0\.\d{4}){3}) +(\d\.\d\d)$", re.MULTILINE
)
CASES = [
    f"{runs}, {length}" for runs in ("1 run", "2 runs") for length in ("same length", "longer", "shorter")
]


def losses_of(curve: StagedCurve, steps: range) -> list[float]:
    progress, noise = schedule_sums(curve, 1.0, np.array(steps))
    errors = 1 + 1e-3 * np.random.default_rng(len(steps)).standard_normal(len(steps))
    return ((2.5 + (progress / 500) ** -0.4 + 0.1 * noise**0.8) * errors).tolist()


def schaipp_log(total: int, decay: float, first: int, scheduler: str = "wsd", lr: float = 1e-3) -> dict:
    """Return a log as in `data/` of lr-scheduling; `first` is the step of the checkpoint where it begins."""
    config = {"dataset": "slimpajama", "model": "llama", "n_layer": 12, "n_embd": 768, "lr": lr}
    config |= {"warmup_steps": 100, "iterations": total, "wsd_fract_decay": decay, "scheduler": scheduler}
    length = int(decay * total)
    end = [(total - 100, 0.1, "cosine")] if scheduler == "cos" else [(total - 100 - length,)]
    curve = StagedCurve(
        [
            (100, 1.0, "cosine" if scheduler == "cos" else "linear"),
            *end,
            *([(length, 0.0)] if length else []),
        ],
        start=0.01,
    )
    steps = range(50, total, 50)
    losses = dict(zip(steps, losses_of(curve, steps), strict=True))
    kept = {0: 11.0} | losses if not first else {t: losses[t] for t in losses if t >= first}
    return {"config": config, "history": {"val": {"iter": list(kept), "val_loss": list(kept.values())}}}


def write_schaipp(clone: Path) -> None:
    (clone / "data").mkdir(parents=True)
    logs = [schaipp_log(6000, 0, 0), *(schaipp_log(n, 0.0, 0, "cos") for n in (3000, 6000))]
    logs += [schaipp_log(n, 0.2, int(0.7 * n)) for n in (3000, 4500, 6000)]
    for index, log in enumerate(logs):
        (clone / "data" / f"{index}.json").write_text(json.dumps(log))


def write_olmo(clone: Path) -> None:
    total, warmup, folder = {"0.5xC": 3000, "1xC": 6000, "10xC": 6000}, 100, clone / "scripts/scaling/data"
    kinds = {
        "peteish-moreeval": lambda n: [(n - warmup - 10, 0.1, "cosine"), (11,)],
        "peteish-moreeval-const": lambda n: [(n - warmup + 1,)],
        "peteish-moreeval-decay": lambda n: [
            (n - warmup - 10 - round((n - 10) / 10),),
            (n // 10 - 1, 0.1),
            (11,),
        ],
    }
    for kind, stages in kinds.items():
        (folder / kind).mkdir(parents=True)
        for name, n in total.items():
            if kind == "peteish-moreeval-const" and name != "10xC":
                continue
            curve = StagedCurve([(warmup - 1, 1.0), *stages(n)], start=1 / warmup)
            steps = range(50, n + 1, 50)
            rows = zip(steps, losses_of(curve, steps), strict=True)
            with (folder / kind / f"190M-{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                columns = "eval/c4_en-validation/CrossEntropyLoss", "optim/learning_rate_group0"
                writer.writerow(["_step", *columns, "learning_rate_peak"])
                for step, loss in rows:
                    if kind != "peteish-moreeval-decay" or step > 0.8 * n:
                        writer.writerow([step, loss, 1e-3 * float(curve(step - 1)), 1e-3])


@pytest.mark.slow
def test_benchmark_reads_both_clones(tmp_path):
    write_schaipp(tmp_path / "lr-scheduling")
    write_olmo(tmp_path / "OLMo")
    program = EXAMPLES / "benchmarks" / "forecast.py"
    text = run(program, "lr-scheduling", "OLMo", "--pairs", 15, folder=tmp_path)
    assert "lr-scheduling: 6 runs in 1 groups; 15 fits, 1 rejected" in text  # the constant one
    assert "OLMo: 7 runs in 1 groups; 21 fits, 1 rejected" in text
    rows = CASE.findall(text)
    assert [row[0] for row in rows] == CASES * 2
    for _, _, errors, covered in rows:
        best, annealing, nearest = map(float, errors.split())
        assert best < min(annealing, nearest, 0.01)
        assert float(covered) == 1


@pytest.mark.parametrize("data_set", ["lr-scheduling", "OLMo"])
def test_page_shows_the_tables_of_the_benchmark(data_set):
    page = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")
    _, _, printed = page.partition(f"\n{data_set}: ")
    assert [row[0] for row in CASE.findall(printed.partition("\n```")[0])[:6]] == CASES


REGRETS = re.compile(
    r"^(same|another) curve +(\d+)((?:  0\.\d{4} \(0\.\d{4}\)){3}) +([01]\.\d\d)$", re.MULTILINE
)


@pytest.mark.slow
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
    text = run(EXAMPLES / "benchmarks" / "best_peak.py", ".", folder=tmp_path)
    assert text.startswith("3 curves of 50000 steps\n")
    same, another = REGRETS.findall(text)
    assert (same[:2], another[:2]) == (("same", "3"), ("another", "6"))
    for *_, regrets, held in (same, another):
        assert float(regrets.split()[0]) < 0.001
        assert held == "1.00"


def test_page_shows_the_table_of_best_peaks():
    page = (ROOT / "docs" / "forecast.md").read_text(encoding="utf-8")
    assert [row[:2] for row in REGRETS.findall(page)] == [("same", "21"), ("another", "168")]
