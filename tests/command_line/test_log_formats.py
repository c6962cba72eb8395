"""`--log` reads the files and the console lines of trainers; each format is an entry of `TOOLS`."""

import json
from typing import NamedTuple

import pytest
from support.commands import error_of, output_of

from plateau_jax import PlateauCurve

CURVE = PlateauCurve(2_000, warmup_steps=100)
OPTIONS = ["2000", "--warmup-steps", "100", "--peak", "3e-4"]
ROWS = [(step, CURVE.learning_rate(step, 3e-4)) for step in range(0, 2_000, 20)]


class Tool(NamedTuple):
    """How a tool logs: a row with STEP and RATE, how RATE is printed, and the first line."""

    row: str
    lr_format: str = ""
    header: str = "config: lr: 0.5"


def json_lines(row):
    return Tool(row, header='{"seed": 0}')


TOOLS = {
    # JSON lines
    "detectron2": json_lines('{"eta_seconds": 1.5, "iteration": STEP, "lr": RATE}'),
    "mmengine": json_lines('{"lr": RATE, "base_lr": RATE, "iter": STEP, "step": STEP}'),
    "mmcv": json_lines('{"mode": "train", "epoch": 1, "iter": STEP, "lr": RATE}'),
    "fairseq": json_lines('{"num_updates": "STEP", "lr": "RATE"}'),
    "levanter": json_lines('{"step": STEP, "optim/learning_rate": RATE}'),
    "nested keys": json_lines('{"step": STEP, "train": {"loss": 2.5, "lr": RATE}}'),
    "Weights & Biases": json_lines('{"_step": STEP, "_runtime": 1.5, "train/lr": RATE}'),
    "a list of groups": json_lines('{"global_step": STEP, "lr": [RATE, 0.5]}'),
    "MetricLog": json_lines('{"applied": STEP, "curve_step": STEP, "lr": RATE}'),
    # CSV
    "Lightning": Tool("0,RATE,STEP", header="epoch,lr-AdamW,step"),
    "LitGPT": Tool("4STEP,STEP,RATE", header="iter,step,learning_rate"),
    "a chart of Weights & Biases": Tool(
        '"STEP","RATE","RATE","RATE"', header='"Step","run - lr","run - lr__MIN","run - lr__MAX"'
    ),
    "TensorBoard": Tool("1.5,STEP,RATE", header="Wall time,Step,Value"),
    "pandas with an index": Tool("0,STEP,RATE", header=",step,lr"),
    "tabs": Tool("STEP\tRATE", ".3e", "step\tlearning rate"),
    "Composer": Tool("STEP,RATE", header="trainer/global_step,lr-DecoupledAdamW/group0"),
    # Console lines
    "nanoGPT": Tool("iter STEP: loss 2.5000, time 321.45ms, lr RATE", ".4e"),
    "Megatron-LM": Tool(
        " iteration     STEP/    2000 | consumed samples:     4STEP | elapsed time per iteration "
        "(ms): 405.2 | learning rate: RATE | loss scale: 1.0 |",
        ".6E",
    ),
    "DeepSpeed": Tool(
        "[2026-01-02 10:00:00,123] [INFO] [Rank 0] step=STEP, skipped=0, lr=[RATE, RATE], "
        "mom=[(0.9, 0.95)]"
    ),
    "detectron2's console": Tool("eta: 0:01:00  iter: STEP  total_loss: 2.5  lr: RATE", ".5g"),
    "OLMo-core": Tool(
        "[step=STEP/2000,epoch=1]\n    optim/LR (group 0)=RATE\n    train/loss=2.5", ".3E"
    ),
    "torchtune": Tool("Step STEP | loss:2.5 lr:RATE tokens_per_second:1000.5"),
    "nanotron": Tool("iteration: STEP / 2000 | lm_loss: 2.5 | lr: RATE | mem: 1.2K", ".3g"),
    "fairseq's console": Tool("epoch 001: loss=2.5, num_updates=STEP, lr=RATE, gnorm=1.1", "g"),
    "mmengine's console": Tool("Iter(train) [STEP/2000]  lr: RATE  eta: 0:01:00", ".4e"),
}


def check_log(text, folder, capsys):
    file = folder / "log"
    file.write_text(text)
    assert "all are on the curve" in output_of(capsys, *OPTIONS, "--log", str(file))


@pytest.mark.parametrize("tool", TOOLS)
def test_logs_of_tools(tool, tmp_path, capsys):
    row, lr_format, header = TOOLS[tool]
    lines = [header]
    for step, lr in ROWS:
        lr_text = f"{lr:{lr_format}}"
        lines.append(row.replace("STEP", str(step)).replace("RATE", lr_text))
    check_log("\n".join([*lines, ""]), tmp_path, capsys)


def test_json_list(tmp_path, capsys):
    rows = [{"step": step, "learning_rate": lr} for step, lr in ROWS]
    check_log(json.dumps(rows, indent=2), tmp_path, capsys)


def test_columns_are_named_in_a_shell(tmp_path, capsys):
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
