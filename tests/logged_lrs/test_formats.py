"""`compare_log` reads the files and the console lines of trainers; a format is a row of `TOOLS`."""

import json
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from logged_lrs.logs import rows_of

from plateau_jax import CurveWarning, PlateauCurve, compare_log

CURVE = PlateauCurve(2_000, warmup_steps=100)
PEAK = 3e-4
STEPS = range(0, 2_000, 20)
LRS = [float(lr) for lr in CURVE.learning_rate(STEPS, PEAK)]
ROWS = rows_of(step=STEPS, lr=LRS)


def check_log(log, **columns):
    """All rows are read, and are on the curve."""
    comparison = compare_log(log, CURVE, PEAK, **columns)
    assert comparison.first_difference is None
    assert comparison.num_lrs == len(STEPS)


class Tool(NamedTuple):
    """How a tool logs: a row with STEP and RATE, how RATE is printed, and the first line."""

    row: str
    lr_format: str = ""
    header: str = "config: lr: 0.5"


def json_lines(row):
    return Tool(row, header='{"seed": 0}')


CONSOLE = "step STEP: loss 3.2, lr RATE"
TRAINER = "{'loss': 3.2, 'learning_rate': RATE, 'epoch': 0.1, 'step': STEP}"
GRAY, CYAN, OFF = "\x1b[90m", "\x1b[38;5;80m", "\x1b[0m"
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
    "JSON after text": Tool('{"step": STEP, "lr": RATE}', header="step: the number of updates"),
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
    "CSV after text": Tool("STEP,RATE", header="run 1, seed 0\nstep,lr"),
    "CSV with commas in text": Tool('STEP,"a, b",RATE', header="step,note,lr"),
    # Console lines
    "nanoGPT": Tool(
        "iter STEP: loss 2.5000, time 321.45ms, lr RATE",
        ".4e",
        header="step 0: train loss 10.9, val loss 10.8",
    ),
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
    "a dictionary first": Tool(CONSOLE, ".4e", header="{'lr': 0.0003, 'total': 1000}"),
    "a JSON object first": Tool(CONSOLE, ".4e", header='{"lr": 0.0003, "total": 1000}'),
    "a configuration again": Tool(f"{CONSOLE}\nconfig: lr 0.5", ".4e"),
    "transformers' console": Tool(TRAINER),
    "transformers' console, NaN": Tool(TRAINER.replace("3.2", "nan"), ".4g"),
    "a progress bar": Tool(f"  1%|#     | 1/200 [00:01<03:00, 1.1it/s]{TRAINER}", ".4g"),
    "colors": Tool(f"{GRAY}step: STEP  {CYAN}lr: RATE{OFF}", ".4e", f"{CYAN}start{OFF}"),
}


def text_of(tool):
    lines = [tool.header]
    for step, lr in zip(STEPS, LRS, strict=True):
        lr_text = f"{lr:{tool.lr_format}}"
        lines.append(tool.row.replace("STEP", str(step)).replace("RATE", lr_text))
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("name", TOOLS)
def test_logs_of_tools(name, tmp_path):
    path = tmp_path / "log"
    text = text_of(TOOLS[name])
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        for line_end in ("\n", "\r\n"):
            path.write_bytes(text.replace("\n", line_end).encode(encoding))
            check_log(path)
    with path.open("rb") as file:
        check_log(file)


def test_json_documents(tmp_path):
    """A list of objects, and the state of the Trainer, whose last rows have no learning rate."""
    path = tmp_path / "log.json"
    path.write_text(json.dumps(ROWS, indent=2))
    check_log(path)
    history = [*ROWS, {"eval_loss": 3.1, "step": 2_000}]
    for indent in (1, None):
        state = {"global_step": 2_000, "best": None, "log_history": history}
        path.write_text(json.dumps(state, indent=indent))
        check_log(str(path))


def test_texts_in_latin_1(tmp_path):
    path = tmp_path / "log.csv"
    text = text_of(Tool("STEP,caf\xe9,RATE", header="step,note,lr"))
    path.write_bytes(text.encode("latin-1"))
    check_log(path)


def test_a_number_with_a_damaged_byte_is_not_read(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"step 1: lr 0.5\nstep 2: lr 0.0\xff3\n")
    assert compare_log(path, CURVE, PEAK).num_lrs == 1


def test_other_separators_in_texts(tmp_path):
    """Samples of generated text may contain other separators of lines."""
    path = tmp_path / "log.csv"
    path.write_text(text_of(Tool("STEP,a\u2028b\x85c\x0cd,RATE", header="step,note,lr")))
    check_log(path)


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA, "", "nan"])
def test_rows_of_programs(missing):
    """Rows without a learning rate are left out."""
    rows = [*ROWS, {"step": 2_000, "lr": missing}]
    check_log(rows)
    check_log(iter(rows))
    check_log(pd.DataFrame(rows))


def test_chosen_columns():
    """Keras logs epochs; here each is one update."""
    check_log(rows_of(epoch=STEPS, step=LRS, pg1=LRS[::-1], pg2=LRS), step="epoch", lr="pg2")


def test_chosen_columns_of_files(tmp_path):
    path = tmp_path / "log"
    for header, row in (("epoch,rate", "STEP,RATE"), ("start", "epoch STEP, rate RATE")):
        path.write_text(text_of(Tool(row, ".4e", header)))
        check_log(path, step="epoch", lr="rate")


def test_a_row_twice():
    """Several ranks may log the same."""
    check_log([row for row in ROWS for _ in range(2)])


def test_steps_of_a_resumed_run():
    """The run stopped after step 1,000, and resumed at step 500; the rows there are right again."""
    wrong = [{"step": step, "lr": 1.0} for step in range(500, 1_001, 20)]
    check_log([*ROWS[:25], *wrong, *ROWS[25:]])


@pytest.mark.parametrize(("header", "row"), [("step,lr", "STEP,RATE"), ("start", CONSOLE)])
def test_last_line_without_its_end_warns(header, row, tmp_path):
    """The trainer was stopped while it wrote: the last number may be cut."""
    path = tmp_path / "log"
    path.write_text(text_of(Tool(row, ".4e", header)) + row.replace("STEP", "2000")[:-4])
    with pytest.warns(CurveWarning, match="log: the last line has no line end.* left out"):
        check_log(path)


def test_last_object_needs_no_line_end(tmp_path):
    path = tmp_path / "log"
    path.write_text(text_of(json_lines('{"step": STEP, "lr": RATE}'))[:-1])
    check_log(path)
