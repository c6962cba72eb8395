"""The GPT and the batch plan give the same on one process or two, and resume on either number."""

import re
import shutil

import pytest
from support.programs import (
    EXAMPLES,
    Program,
    assert_rejected,
    finish,
    number_after,
    rank_environments,
)

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

SMALL = ("--batch-size", 4, "--context", 32, "--width", 32, "--layers", 2)
FEW_UPDATES = ("--steps", 12, "--every", 6, *SMALL)


def start(folder, script, *arguments, environment=None):
    """Start an example on the CPU."""
    on_cpu = (*arguments, "--device", "cpu")
    return Program(EXAMPLES / script, *on_cpu, folder=folder, environment=environment)


def torchrun(folder, script, *arguments, processes=2):
    """Start an example in several processes, as torchrun does."""
    return [
        start(folder, script, *arguments, environment=environment)
        for environment in rank_environments(processes)
    ]


def run(folder, script, *arguments, processes=1, status=0):
    """Run the program on all processes; return the lines that the first one prints."""
    folder.mkdir(exist_ok=True)
    if processes == 1:
        return finish(start(folder, script, *arguments), status)
    first, *rest = torchrun(folder, script, *arguments, processes=processes)
    lines = finish(first, status)
    for program in rest:
        assert finish(program, status) == []
    return lines


def test_muon(tmp_path):
    muon = ("--optimizer", "muon", "--steps", 60, "--every", 60, "--batch-size", 12)
    lines = run(tmp_path, "train_gpt.py", *muon)
    of_frequencies = number_after("loss of byte frequencies:", lines)
    of_model = number_after("loss of the model:", lines)
    assert of_model < of_frequencies
    assert "an update: 1 micro-batches of 12 sequences" in lines


def gpt_losses(parallelism, folder, *arguments):
    """Train on one process, or with DDP or FSDP on two; return the lines about losses."""
    if parallelism == "one":
        lines = run(folder, "train_gpt.py", *arguments)
    else:
        options = ("--distribute", parallelism, "--checkpoint-activations")
        lines = run(folder, "train_gpt.py", *arguments, *options, processes=2)
    return [line for line in lines if "loss" in line]


def test_losses_agree_for_any_number_of_processes(tmp_path):
    """Also of runs that another number of processes has saved in the middle."""
    expected = gpt_losses("one", tmp_path / "one", *FEW_UPDATES)
    assert len(expected) == 4
    under_ddp = gpt_losses("ddp", tmp_path / "ddp", *FEW_UPDATES)
    under_fsdp = gpt_losses("fsdp", tmp_path / "fsdp", *FEW_UPDATES)
    assert under_ddp == expected
    assert under_fsdp == expected
    for saved, resumed in [("one", "fsdp"), ("ddp", "one"), ("fsdp", "ddp")]:
        folder = tmp_path / f"{saved} {resumed}"
        checkpoints = folder / "train_gpt_checkpoints"
        shutil.copytree(tmp_path / saved / "train_gpt_checkpoints", checkpoints)
        for last in checkpoints.glob("12*"):
            shutil.rmtree(last)
        losses = gpt_losses(resumed, folder, "--resume")
        assert losses == expected[1:]


TOKENS = 51_200
TOKENS_PER_STEP = 1000
LAST_BATCH = 2048


def growing_batch(consumed):
    """Return the batch after these tokens: that of the small run's plan."""
    if consumed < 10_240:
        return 512
    if consumed < 20_480:
        return 1024
    return LAST_BATCH


def constant_batch(consumed):
    return LAST_BATCH


def logged_updates(folder, name):
    log = MetricLog(keep=None)
    checkpoints = Checkpoints(folder / "batch_plan_checkpoints")
    checkpoints.load(partial=True, **{f"{name}_log": log})
    return log.rows


@pytest.mark.parametrize(
    ("name", "batch_after"), [("constant", constant_batch), ("growing", growing_batch)]
)
def test_runs_count_tokens(name, batch_after, ran):
    folder, lines = ran("batch_plan.py")
    updates = logged_updates(folder, name)
    consumed = 0
    for update in updates:
        assert update["curve_step"] == consumed // TOKENS_PER_STEP
        consumed += batch_after(consumed)
        assert update["consumed"] == consumed
    assert consumed == TOKENS
    assert f"{name} batch: {len(updates)} updates for {TOKENS} tokens; 0 are done" in lines


def test_number_of_tokens_is_fixed_when_resuming(ran):
    folder, _ = ran("batch_plan.py")
    longer = ("--device", "cpu", "--resume", "--tokens", 2 * TOKENS)
    message = "; without --tokens, --resume continues as planned"
    assert_rejected(folder, "batch_plan.py", longer, 1, message)


ADVICE = "batch_plan_checkpoints resumes with --resume"


def test_two_processes_save_together_on_ctrl_c(tmp_path):
    long = ("--tokens", 10**9, "--plan", "0:128", "--micro-batch", 64)
    first, second = torchrun(tmp_path, "batch_plan.py", *long)
    for line in first.lines():
        if line.startswith("growing batch:"):
            break
    first.interrupt()
    assert finish(second, status=130) == []
    *_, last_line = finish(first, status=130)
    stopped = re.fullmatch(rf"stopped after (\d+) tokens; {ADVICE}", last_line)
    assert stopped is not None, last_line
    *_, last_update = logged_updates(tmp_path, "constant")
    assert last_update["consumed"] == int(stopped[1])
