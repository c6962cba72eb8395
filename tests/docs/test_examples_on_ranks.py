"""The GPT and the batch plan give the same on one process or two, and resume on either number."""

import re
import shutil

import numpy as np
import pytest
from support.programs import (
    EXAMPLES,
    SMALL_RUNS,
    assert_rejected,
    finish,
    number_after,
    start,
    torchrun,
)

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

SMALL = ("--batch-size", 4, "--context", 32, "--width", 32, "--layers", 2)
FEW = ("train_gpt.py", "--steps", 12, "--every", 6, *SMALL)


def run(folder, script, *arguments, processes=1, status=0):
    """Run the program on all processes; return the lines that the first one prints."""
    folder.mkdir(exist_ok=True)
    if processes == 1:
        return finish(start(folder, script, *arguments), status)
    first, *rest = torchrun(folder, script, *arguments, processes=processes)
    lines = finish(first, status)
    assert [finish(program, status) for program in rest] == [[]] * len(rest)
    return lines


def test_log_keeps_only_the_rows_of_the_next_mean(ran):
    """Checkpoints do not grow with the number of updates."""
    folder, lines = ran("train_gpt.py")
    log = MetricLog()
    assert Checkpoints(folder / "train_gpt_checkpoints").load(log=log) == 200
    assert [row["applied"] for row in log.rows] == list(range(181, 201))
    mean = sum(row["loss"] for row in log.rows) / len(log.rows)
    assert f"update 200: loss {mean:.4f}," in "\n".join(lines)


def test_muon_and_global_batch(tmp_path):
    muon = "--optimizer", "muon", "--steps", "60", "--every", "60", "--global-batch", "12"
    lines = run(tmp_path, "train_gpt.py", *muon)
    assert number_after("loss of the model:", lines) < number_after(
        "loss of byte frequencies:", lines
    )
    assert "an update: 1 micro-batches of 12 sequences" in lines


def test_losses_agree_for_any_number_of_processes(tmp_path):
    def losses(parallelism, folder, *arguments):
        if parallelism != "one":
            arguments = *arguments, "--distribute", parallelism, "--checkpoint-activations"
        lines = run(folder, *arguments, processes=1 if parallelism == "one" else 2)
        return [line for line in lines if "loss" in line]

    parallelisms = "one", "ddp", "fsdp"
    expected = losses("one", tmp_path / "one", *FEW)
    assert len(expected) == 4
    for parallelism in parallelisms[1:]:
        assert losses(parallelism, tmp_path / parallelism, *FEW) == expected
    for saved in parallelisms:
        for resumed in parallelisms:
            folder = tmp_path / f"{saved} {resumed}"
            copied = folder / "train_gpt_checkpoints"
            shutil.copytree(tmp_path / saved / "train_gpt_checkpoints", copied)
            for last in copied.glob("12*"):
                shutil.rmtree(last)
            assert losses(resumed, folder, "train_gpt.py", "--resume") == expected[1:]


PAIRS = [(0, 512), (10_240, 1024), (20_480, 2048)]
TOKENS, UNIT = 51_200, 1000
STOPPED = """
import runpy, sys

sys.path.insert(0, {folder!r})
import train_gpt

calls = iter(range(1, {calls} + 1))
train_gpt.stopped = lambda stop, device: next(calls) == {calls}
runpy.run_path({script!r}, run_name="__main__")
"""
"""Ends as after a Ctrl-C, at this call of `stopped`: the arrival of a Ctrl-C depends on speed."""


def rows_of(folder, name):
    log = MetricLog(keep=None)
    Checkpoints(folder / "batch_plan_checkpoints").load(**{f"{name}_log": log})
    return log.rows


def batch_by_hand(consumed):
    return max((threshold, batch) for threshold, batch in PAIRS if threshold <= consumed)[1]


def test_both_runs_count_tokens(ran):
    folder, lines = ran("batch_plan.py")
    for name, batch_at in (("constant", lambda _: PAIRS[-1][1]), ("growing", batch_by_hand)):
        consumed, rows = 0, rows_of(folder, name)
        for row in rows:
            assert row["curve_step"] == consumed // UNIT
            consumed += batch_at(consumed)
            assert row["consumed"] == consumed
        assert consumed == TOKENS
        assert f"{name} batch: {len(rows)} updates for {TOKENS} tokens; 0 are done" in lines
    longer = "--device", "cpu", "--resume", "--tokens", "102400"
    assert_rejected(
        folder, "batch_plan.py", longer, 1, "; without --tokens, --resume continues as planned"
    )


@pytest.mark.parametrize(
    ("before", "calls", "consumed", "after"),
    [((1, 512), 25 + 25, 15_360, (2, 128)), ((2, 128), 2 + 1, 5_120, (1, 512))],
)
def test_run_stopped_mid_ramp_resumes_at_the_same_token(
    ran, tmp_path, before, calls, consumed, after
):
    """Resumes with a different micro-batch and number of processes."""
    expected, lines = ran("batch_plan.py")
    script = tmp_path / "stopped.py"
    script.write_text(
        STOPPED.format(folder=str(EXAMPLES), calls=calls, script=str(EXAMPLES / "batch_plan.py"))
    )
    (processes, micro_batch), (processes_after, micro_batch_after) = before, after
    options = *SMALL_RUNS["batch_plan.py"].split(), "--micro-batch", micro_batch
    *_, last = run(tmp_path, script, *options, processes=processes, status=130)
    assert last == f"stopped after {consumed} tokens; batch_plan_checkpoints resumes with --resume"
    so_far = rows_of(tmp_path, "growing")
    assert so_far[-1]["consumed"] == consumed

    options = "--resume", "--micro-batch", micro_batch_after
    resumed = run(tmp_path, "batch_plan.py", *options, processes=processes_after)
    assert resumed[1].endswith(f"tokens; {consumed} are done")
    assert resumed[-4:-1] == lines[-4:-1]
    for name in ("constant", "growing"):
        resumed_rows, expected_rows = rows_of(tmp_path, name), rows_of(expected, name)
        for column in (
            "applied",
            "consumed",
            "curve_step",
            "lr",
        ):  # the same bits for any split of the batch
            assert [row[column] for row in resumed_rows] == [row[column] for row in expected_rows]
        losses = [[row["loss"] for row in rows] for rows in (resumed_rows, expected_rows)]
        np.testing.assert_allclose(*losses, rtol=1e-3)
    assert rows_of(tmp_path, "growing")[: len(so_far)] == so_far


def test_two_processes_save_together_on_ctrl_c(tmp_path):
    long = "--tokens", 10**9, "--plan", "0:128", "--micro-batch", 64
    first, second = torchrun(tmp_path, "batch_plan.py", *long)
    next(line for line in first.lines() if line.startswith("growing batch:"))
    first.interrupt()
    assert finish(second, status=130) == []
    *_, last = finish(first, status=130)
    stopped = re.fullmatch(
        r"stopped after (\d+) tokens; batch_plan_checkpoints resumes with --resume", last
    )
    assert rows_of(tmp_path, "constant")[-1]["consumed"] == int(stopped[1])


def test_seesaw_makes_fewer_updates_on_equal_data(tmp_path):
    tokens, seeds = 8192, 2  # the program itself compares learning rates and weights
    title, _, *rows, without_warmup, resumed, last = run(
        tmp_path, "batch_plan.py", "--seesaw", seeds, "--tokens", tokens
    )
    assert title.startswith(f"{tokens} tokens in each run, {seeds} seeds")
    for row, batch in zip(rows, (64, 512, 4096), strict=True):
        first, of_cosine, of_seesaw, peak = map(
            float, re.match(r" *(\S+) +(\S+) → +(\S+) +(\S+)", row).groups()
        )
        assert (first, of_cosine) == (batch, tokens / batch)
        assert of_seesaw < of_cosine or of_cosine == 2
        assert peak == pytest.approx(4e-3 * np.sqrt(batch / 1024), abs=1e-6)
        *losses, difference, _ = map(float, re.findall(r"[-+]?\d\.\d{4}(?!\d)", row))
        assert difference == pytest.approx(losses[-1] - losses[0], abs=2e-4)
    assert without_warmup == "without a warmup, in batches of 1024: 8 updates, and 6 of Seesaw;"
    assert resumed == "stopped after 5 and resumed, it ends with the same weights"
    assert last == "PyTorch and JAX have the same learning rates at every update"
