"""The files and the console lines of trainers, read as in a shell."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.commands import error_of, output_of

from plateau_jax import PlateauCurve

CURVE = PlateauCurve(2_000, warmup_steps=100)
OPTIONS = ["2000", "--warmup-steps", "100", "--peak", "3e-4"]
STEPS = range(0, 2_000, 20)
LRS = [CURVE.learning_rate(step, 3e-4) for step in STEPS]

Format = Callable[[int, float], Any]


def lines_of(line: Format, header: str = "") -> str:
    lines = [line(step, lr) for step, lr in zip(STEPS, LRS, strict=True)]
    return "\n".join([header, *lines]).lstrip("\n") + "\n"


def json_lines_of(row: Format) -> str:
    return lines_of(lambda step, lr: json.dumps(row(step, lr)))


def list_of(row: Format) -> list[Any]:
    return [row(step, lr) for step, lr in zip(STEPS, LRS, strict=True)]


def history_row(step: int, lr: float) -> dict[str, Any]:
    return {"epoch": step / 500, "learning_rate": lr, "loss": 2.5, "step": step}


DOCUMENTS = {
    "Trainer, trainer_state.json": json.dumps(
        {"best_metric": None, "log_history": list_of(history_row)}, indent=2
    ),
    "a JSON list": json.dumps(list_of(lambda step, lr: {"step": step, "lr": lr})),
}
JSON_LINES = {
    "detectron2, metrics.json": lambda step, lr: {"eta": 1.5, "iteration": step, "lr": lr},
    "mmengine, scalars.json": lambda step, lr: {
        "lr": lr,
        "base_lr": lr,
        "iter": step,
        "step": step,
    },
    "mmcv, log.json": lambda step, lr: {"mode": "train", "epoch": 1, "iter": step, "lr": lr},
    "fairseq, train.json": lambda step, lr: {"num_updates": str(step), "lr": f"{lr:g}"},
    "levanter": lambda step, lr: {"step": step, "optim/learning_rate": lr},
    "nested keys": lambda step, lr: {"step": step, "train": {"loss": 2.5, "lr": lr}},
    "W&B, history": lambda step, lr: {"_step": step, "_runtime": 1.5, "train/lr": lr},
    "a list of groups": lambda step, lr: {"global_step": step, "lr": [lr, 10 * lr]},
    "MetricLog": lambda step, lr: {"applied": step, "curve_step": step, "lr": lr},
}
TABLES: dict[str, tuple[str, Format]] = {
    "Lightning, metrics.csv": ("epoch,lr-AdamW,step", lambda step, lr: f"0,{lr},{step}"),
    "litgpt, metrics.csv": (
        "iter,step,learning_rate",
        lambda step, lr: f"{4 * step},{step},{lr}",
    ),
    "W&B, chart.csv": (
        '"Step","run - lr","run - lr__MIN","run - lr__MAX"',
        lambda step, lr: f'"{step}","{lr}","{lr}","{lr}"',
    ),
    "TensorBoard, scalars.csv": ("Wall time,Step,Value", lambda step, lr: f"1.5,{step},{lr}"),
    "pandas, with an index": (",step,lr", lambda step, lr: f"{step // 20},{step},{lr}"),
    "tabs": ("step\tlearning rate", lambda step, lr: f"{step}\t{lr:.3e}"),
    "Composer, with names of groups": (
        "trainer/global_step,lr-DecoupledAdamW/group0",
        lambda step, lr: f"{step},{lr}",
    ),
}
CONSOLES: dict[str, Format] = {
    "nanoGPT": lambda step, lr: f"iter {step}: loss 2.5000, time 321.45ms, lr {lr:.4e}",
    "Megatron-LM": lambda step, lr: (
        f" iteration {step:8}/    2000 | consumed samples: {4 * step:12} | elapsed time per "
        f"iteration (ms): 405.2 | learning rate: {lr:.6E} | loss scale: 1.0 |"
    ),
    "DeepSpeed": lambda step, lr: (
        f"[2026-01-02 10:00:00,123] [INFO] [Rank 0] step={step}, skipped=0, lr=[{lr}, {lr}], "
        "mom=[(0.9, 0.95)]"
    ),
    "detectron2": lambda step, lr: (
        f"eta: 0:01:00  iter: {step}  total_loss: 2.5  time: 0.1  lr: {lr:.5g}  max_mem: 1M"
    ),
    "OLMo-core": lambda step, lr: (
        f"[step={step}/2000,epoch=1,eta=10s]\n    optim/LR (group 0)={lr:.3E}\n    train/loss=2.5"
    ),
    "torchtune": lambda step, lr: f"Step {step} | loss:2.5 lr:{lr} tokens_per_second:1000.5",
    "nanotron": lambda step, lr: (
        f"iteration: {step} / 2000 | lm_loss: 2.5 | lr: {lr:.3g} | M: 1.2K"
    ),
    "fairseq": lambda step, lr: f"epoch 001: loss=2.5, num_updates={step}, lr={lr:g}, gnorm=1.1",
    "mmengine": lambda step, lr: f"Iter(train) [{step:4}/2000]  lr: {lr:.4e}  eta: 0:01:00",
}
TEXTS = {
    **DOCUMENTS,
    **{name: json_lines_of(row) for name, row in JSON_LINES.items()},
    **{name: lines_of(line, header) for name, (header, line) in TABLES.items()},
    **{name: lines_of(line, "config: lr: 0.5") for name, line in CONSOLES.items()},
}


@pytest.mark.parametrize("name", TEXTS)
def test_logs_of_tools(name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text(TEXTS[name])
    assert "all are on the curve" in output_of(capsys, *OPTIONS, "--log", str(file))


SEVERAL = lines_of(lambda step, lr: f"{step},{2 * lr},{lr}", "epoch,lr-Adam/pg1,lr-Adam/pg2")


def test_columns_are_named_in_a_shell(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Keras logs epochs; here each is one update."""
    file = tmp_path / "log.csv"
    file.write_text(SEVERAL)
    options = [*OPTIONS, "--log", str(file)]
    problem = "no usual column for step among 'epoch', 'lr-Adam/pg1', 'lr-Adam/pg2': name one with"
    assert f"{problem} --step-column" in error_of(capsys, *options)
    options += ["--step-column", "epoch"]
    problem = "several columns for lr, 'lr-Adam/pg1', 'lr-Adam/pg2': name one with --lr-column"
    assert problem in error_of(capsys, *options)
    options += ["--lr-column", "lr-Adam/pg2"]
    assert "all are on the curve" in output_of(capsys, *options)
