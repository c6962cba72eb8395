"""Two training runs on one token clock; stopped mid-ramp, and resumed with a different split of the batch."""

import re

import numpy as np
import pytest
from support.programs import EXAMPLES, assert_is_a_picture, finish, start, torchrun

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

PAIRS = [(0, 512), (10_240, 1024), (20_480, 2048)]
TOKENS, UNIT = 51_200, 1000
SMALL = ("--tokens", TOKENS, "--plan", *(f"{threshold}:{batch}" for threshold, batch in PAIRS))
STOPPED = """
import runpy, sys

sys.path.insert(0, {folder!r})
import train_gpt

calls = iter(range(1, {calls} + 1))
train_gpt.stopped = lambda stop, device: next(calls) == {calls}
runpy.run_path({script!r}, run_name="__main__")
"""


def run(folder, *arguments, script="batch_plan.py", processes=1, status=0):
    """Run the program on all processes; return the lines that the first one prints."""
    if processes == 1:
        return finish(start(folder, script, *arguments), status)
    first, *rest = torchrun(folder, script, *arguments, processes=processes)
    lines = finish(first, status)
    assert [finish(program, status) for program in rest] == [[]] * len(rest)
    return lines


def rows_of(folder, name):
    log = MetricLog(keep=None)
    Checkpoints(folder / "batch_plan_checkpoints").load(**{f"{name}_log": log})
    return log.rows


def exact_columns(rows):
    """Return the columns that must have the same bits for any split of the batch."""
    return [(row["applied"], row["consumed"], row["clock"], row["lr"]) for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, run(folder, *SMALL, "--output", "new/runs.png")


def batch_by_hand(consumed):
    return max((threshold, batch) for threshold, batch in PAIRS if threshold <= consumed)[1]


def test_both_runs_follow_the_token_clock(uninterrupted):
    folder, lines = uninterrupted
    for name, batch_at in (("constant", lambda _: PAIRS[-1][1]), ("growing", batch_by_hand)):
        consumed = 0
        for row in rows_of(folder, name):
            assert row["clock"] == consumed // UNIT
            consumed += batch_at(consumed)
            assert row["consumed"] == consumed
        assert consumed == TOKENS
        updates = len(rows_of(folder, name))
        assert f"{name} batch: {updates} updates for {TOKENS} tokens; 0 are done" in lines


def test_no_learning_rate_differs(uninterrupted):
    _, lines = uninterrupted
    assert lines[-4:-1] == [
        "learning rates that differ at equal tokens in PyTorch: 0 of 25",
        "learning rates that differ at equal tokens in JAX: 0 of 25",
        "learning rates that differ between PyTorch and JAX: 0 of 70",
    ]


def test_picture_is_drawn(uninterrupted):
    folder, _ = uninterrupted
    assert_is_a_picture(folder / "new" / "runs.png")


@pytest.mark.parametrize(
    ("before", "calls", "consumed", "after"),
    [((1, 512), 25 + 25, 15_360, (2, 128)), ((2, 128), 2 + 1, 5_120, (1, 512))],
)
def test_run_stopped_mid_ramp_resumes_at_the_same_clock(
    uninterrupted, tmp_path, before, calls, consumed, after
):
    """Resumes with a different micro-batch and number of processes."""
    expected, lines = uninterrupted
    # The arrival of a Ctrl-C depends on speed, so a patched `stopped` returns True at a given call instead.
    script = tmp_path / "stopped.py"
    script.write_text(
        STOPPED.format(folder=str(EXAMPLES), calls=calls, script=str(EXAMPLES / "batch_plan.py"))
    )
    (processes, micro_batch), (processes_after, micro_batch_after) = before, after
    options = *SMALL, "--micro-batch", micro_batch
    *_, last = run(tmp_path, *options, script=script, processes=processes, status=130)
    assert last == f"stopped after {consumed} tokens; batch_plan_checkpoints resumes with --resume"
    so_far = rows_of(tmp_path, "growing")
    assert so_far[-1]["consumed"] == consumed

    resumed = run(tmp_path, "--resume", "--micro-batch", micro_batch_after, processes=processes_after)
    assert resumed[1].endswith(f"tokens; {consumed} are done")
    assert resumed[-4:] == [*lines[-4:-1], "picture: batch_plan.png"]
    for name in ("constant", "growing"):
        resumed_rows, expected_rows = rows_of(tmp_path, name), rows_of(expected, name)
        assert exact_columns(resumed_rows) == exact_columns(expected_rows)
        losses = [[row["loss"] for row in rows] for rows in (resumed_rows, expected_rows)]
        np.testing.assert_allclose(*losses, rtol=1e-3)
    assert rows_of(tmp_path, "growing")[: len(so_far)] == so_far


def test_two_processes_stop_together_on_ctrl_c(tmp_path):
    long = "--tokens", 10**9, "--plan", "0:128", "--micro-batch", 64
    first, second = torchrun(tmp_path, "batch_plan.py", *long)
    next(line for line in first.lines() if line.startswith("growing batch:"))
    first.interrupt()
    assert finish(second, status=130) == []
    *_, last = finish(first, status=130)
    stopped = re.fullmatch(r"stopped after (\d+) tokens; batch_plan_checkpoints resumes with --resume", last)
    assert rows_of(tmp_path, "constant")[-1]["consumed"] == int(stopped[1])


def test_resume_under_another_curve_is_rejected(uninterrupted):
    folder, _ = uninterrupted
    status, _, errors = start(folder, "batch_plan.py", "--resume", "--tokens", 102_400).finish()
    assert status == 1
    last = errors.splitlines()[-1]
    assert last.startswith("batch_plan.py: state_dict cannot resume at step ")
    assert last.endswith("; without --tokens, --resume continues as planned")


def test_seesaw_makes_fewer_updates_on_equal_data(tmp_path):
    tokens, seeds = 8192, 2  # the program itself compares learning rates and weights
    title, _, *rows, without_warmup, resumed, last = run(tmp_path, "--seesaw", seeds, "--tokens", tokens)
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
