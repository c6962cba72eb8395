"""`--log` reads the files and the console lines of trainers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import error_of, output_of

from plateau_jax import PlateauCurve

CURVE = PlateauCurve(2_000, warmup_steps=100)
OPTIONS = ["2000", "--warmup-steps", "100", "--peak", "3e-4"]
ROWS = [(step, CURVE.learning_rate(step, 3e-4)) for step in range(0, 2_000, 20)]

Row = dict[str, Any]
TEXTS: dict[str, str] = {}
"""The log of a tool, by the name of the function that writes a row of it."""


def json_document(row: Callable[[int, float], Row]) -> None:
    rows = [row(step, lr) for step, lr in ROWS]
    TEXTS[f"{row.__name__} list"] = json.dumps(rows)
    TEXTS[row.__name__] = json.dumps({"best_metric": None, "log_history": rows}, indent=2)


def json_lines(row: Callable[[int, float], Row]) -> None:
    TEXTS[row.__name__] = "".join(json.dumps(row(step, lr)) + "\n" for step, lr in ROWS)


def table(header: str) -> Callable[[Callable[[int, float], str]], None]:
    def write(line: Callable[[int, float], str]) -> None:
        lines = [line(step, lr) for step, lr in ROWS]
        TEXTS[line.__name__] = "\n".join([header, *lines, ""])

    return write


console = table("config: lr: 0.5")


@json_document
def trainer_state(step: int, lr: float) -> Row:
    return {"epoch": step / 500, "learning_rate": lr, "loss": 2.5, "step": step}


@json_lines
def detectron2_metrics(step: int, lr: float) -> Row:
    return {"eta_seconds": 1.5, "iteration": step, "lr": lr}


@json_lines
def mmengine_scalars(step: int, lr: float) -> Row:
    return {"lr": lr, "base_lr": lr, "iter": step, "step": step}


@json_lines
def mmcv_log(step: int, lr: float) -> Row:
    return {"mode": "train", "epoch": 1, "iter": step, "lr": lr}


@json_lines
def fairseq_train(step: int, lr: float) -> Row:
    return {"num_updates": str(step), "lr": f"{lr:g}"}


@json_lines
def levanter(step: int, lr: float) -> Row:
    return {"step": step, "optim/learning_rate": lr}


@json_lines
def nested_keys(step: int, lr: float) -> Row:
    return {"step": step, "train": {"loss": 2.5, "lr": lr}}


@json_lines
def wandb_history(step: int, lr: float) -> Row:
    return {"_step": step, "_runtime": 1.5, "train/lr": lr}


@json_lines
def list_of_groups(step: int, lr: float) -> Row:
    return {"global_step": step, "lr": [lr, 10 * lr]}


@json_lines
def metric_log(step: int, lr: float) -> Row:
    return {"applied": step, "curve_step": step, "lr": lr}


@table("epoch,lr-AdamW,step")
def lightning_metrics(step: int, lr: float) -> str:
    return f"0,{lr},{step}"


@table("iter,step,learning_rate")
def litgpt_metrics(step: int, lr: float) -> str:
    return f"{4 * step},{step},{lr}"


@table('"Step","run - lr","run - lr__MIN","run - lr__MAX"')
def wandb_chart(step: int, lr: float) -> str:
    return f'"{step}","{lr}","{lr}","{lr}"'


@table("Wall time,Step,Value")
def tensorboard_scalars(step: int, lr: float) -> str:
    return f"1.5,{step},{lr}"


@table(",step,lr")
def pandas_with_an_index(step: int, lr: float) -> str:
    return f"{step // 20},{step},{lr}"


@table("step\tlearning rate")
def tabs(step: int, lr: float) -> str:
    return f"{step}\t{lr:.3e}"


@table("trainer/global_step,lr-DecoupledAdamW/group0")
def composer(step: int, lr: float) -> str:
    return f"{step},{lr}"


@console
def nanogpt(step: int, lr: float) -> str:
    return f"iter {step}: loss 2.5000, time 321.45ms, lr {lr:.4e}"


@console
def megatron_lm(step: int, lr: float) -> str:
    samples = f"consumed samples: {4 * step:12} | elapsed time per iteration (ms): 405.2"
    return f" iteration {step:8}/    2000 | {samples} | learning rate: {lr:.6E} | loss scale: 1.0 |"


@console
def deepspeed(step: int, lr: float) -> str:
    place = "[2026-01-02 10:00:00,123] [INFO] [Rank 0]"
    return f"{place} step={step}, skipped=0, lr=[{lr}, {lr}], mom=[(0.9, 0.95)]"


@console
def detectron2(step: int, lr: float) -> str:
    return f"eta: 0:01:00  iter: {step}  total_loss: 2.5  lr: {lr:.5g}  max_mem: 1M"


@console
def olmo_core(step: int, lr: float) -> str:
    return f"[step={step}/2000,epoch=1]\n    optim/LR (group 0)={lr:.3E}\n    train/loss=2.5"


@console
def torchtune(step: int, lr: float) -> str:
    return f"Step {step} | loss:2.5 lr:{lr} tokens_per_second:1000.5"


@console
def nanotron(step: int, lr: float) -> str:
    return f"iteration: {step} / 2000 | lm_loss: 2.5 | lr: {lr:.3g} | mem: 1.2K"


@console
def fairseq(step: int, lr: float) -> str:
    return f"epoch 001: loss=2.5, num_updates={step}, lr={lr:g}, gnorm=1.1"


@console
def mmengine(step: int, lr: float) -> str:
    return f"Iter(train) [{step:4}/2000]  lr: {lr:.4e}  eta: 0:01:00"


@pytest.mark.parametrize("name", TEXTS)
def test_logs_of_tools(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text(TEXTS[name])
    assert "all are on the curve" in output_of(capsys, *OPTIONS, "--log", str(file))


def test_columns_are_named_in_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keras logs epochs; here each is one update."""
    file = tmp_path / "log.csv"
    lines = [f"{step},{2 * lr},{lr}" for step, lr in ROWS]
    file.write_text("\n".join(["epoch,lr-Adam/pg1,lr-Adam/pg2", *lines, ""]))
    options = [*OPTIONS, "--log", str(file)]
    problem = "no usual column for step among 'epoch', 'lr-Adam/pg1', 'lr-Adam/pg2': name one with"
    assert f"{problem} --step-column" in error_of(capsys, *options)
    options += ["--step-column", "epoch"]
    problem = "several columns for lr, 'lr-Adam/pg1', 'lr-Adam/pg2': name one with --lr-column"
    assert problem in error_of(capsys, *options)
    options += ["--lr-column", "lr-Adam/pg2"]
    assert "all are on the curve" in output_of(capsys, *options)
