"""The GPT and the batch plan give the same on one process or two, and resume on either number."""

import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.programs import (
    EXAMPLES,
    SMALL_RUNS,
    Program,
    assert_rejected,
    finish,
    number_after,
    rank_environments,
)

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

RunOnce = Callable[[str], tuple[Path, list[str]]]

SMALL = ("--batch-size", 4, "--context", 32, "--width", 32, "--layers", 2)
FEW_UPDATES = ("--steps", 12, "--every", 6, *SMALL)


def start(
    folder: Path,
    script: str | Path,
    *arguments: str | int,
    environment: Mapping[str, str] | None = None,
) -> Program:
    """Start an example on the CPU."""
    on_cpu = (*arguments, "--device", "cpu")
    return Program(EXAMPLES / script, *on_cpu, folder=folder, environment=environment)


def torchrun(
    folder: Path, script: str | Path, *arguments: str | int, processes: int = 2
) -> list[Program]:
    """Start an example in several processes, as torchrun does."""
    return [
        start(folder, script, *arguments, environment=environment)
        for environment in rank_environments(processes)
    ]


def run(
    folder: Path, script: str | Path, *arguments: str | int, processes: int = 1, status: int = 0
) -> list[str]:
    """Run the program on all processes; return the lines that the first one prints."""
    folder.mkdir(exist_ok=True)
    if processes == 1:
        return finish(start(folder, script, *arguments), status)
    first, *rest = torchrun(folder, script, *arguments, processes=processes)
    lines = finish(first, status)
    for program in rest:
        assert finish(program, status) == []
    return lines


def test_log_keeps_only_the_rows_of_the_next_mean(ran: RunOnce) -> None:
    """Checkpoints do not grow with the number of updates."""
    folder, lines = ran("train_gpt.py")
    log = MetricLog()
    checkpoints = Checkpoints(folder / "train_gpt_checkpoints")
    assert checkpoints.load(log=log, partial=True) == 200
    updates = [row["applied"] for row in log.rows]
    losses = [row["loss"] for row in log.rows]
    assert updates == list(range(181, 201))
    mean = sum(losses) / len(losses)
    assert f"update 200: loss {mean:.4f}," in "\n".join(lines)


def test_muon(tmp_path: Path) -> None:
    muon = ("--optimizer", "muon", "--steps", 60, "--every", 60, "--batch-size", 12)
    lines = run(tmp_path, "train_gpt.py", *muon)
    of_frequencies = number_after("loss of byte frequencies:", lines)
    of_model = number_after("loss of the model:", lines)
    assert of_model < of_frequencies
    assert "an update: 1 micro-batches of 12 sequences" in lines


def gpt_losses(parallelism: str, folder: Path, *arguments: str | int) -> list[str]:
    """Train on one process, or with DDP or FSDP on two; return the lines about losses."""
    if parallelism == "one":
        lines = run(folder, "train_gpt.py", *arguments)
    else:
        options = ("--distribute", parallelism, "--checkpoint-activations")
        lines = run(folder, "train_gpt.py", *arguments, *options, processes=2)
    return [line for line in lines if "loss" in line]


def test_losses_agree_for_any_number_of_processes(tmp_path: Path) -> None:
    """Also of runs that another number of processes has saved in the middle."""
    expected = gpt_losses("one", tmp_path / "one", *FEW_UPDATES)
    assert len(expected) == 4
    under_ddp = gpt_losses("ddp", tmp_path / "ddp", *FEW_UPDATES)
    under_fsdp = gpt_losses("fsdp", tmp_path / "fsdp", *FEW_UPDATES)
    assert under_ddp == expected
    assert under_fsdp == expected
    for saved in ("one", "ddp", "fsdp"):
        for resumed in ("one", "ddp", "fsdp"):
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


def growing_batch(consumed: int) -> int:
    """Return the batch after these tokens: that of the small run's plan."""
    if consumed < 10_240:
        return 512
    if consumed < 20_480:
        return 1024
    return LAST_BATCH


def constant_batch(consumed: int) -> int:
    return LAST_BATCH


def logged_updates(folder: Path, name: str) -> list[dict[str, Any]]:
    log = MetricLog(keep=None)
    checkpoints = Checkpoints(folder / "batch_plan_checkpoints")
    checkpoints.load(partial=True, **{f"{name}_log": log})
    return log.rows


@pytest.mark.parametrize(
    ("name", "batch_after"), [("constant", constant_batch), ("growing", growing_batch)]
)
def test_runs_count_tokens(name: str, batch_after: Callable[[int], int], ran: RunOnce) -> None:
    folder, lines = ran("batch_plan.py")
    updates = logged_updates(folder, name)
    consumed = 0
    for update in updates:
        assert update["curve_step"] == consumed // TOKENS_PER_STEP
        consumed += batch_after(consumed)
        assert update["consumed"] == consumed
    assert consumed == TOKENS
    assert f"{name} batch: {len(updates)} updates for {TOKENS} tokens; 0 are done" in lines


def test_number_of_tokens_is_fixed_when_resuming(ran: RunOnce) -> None:
    folder, _ = ran("batch_plan.py")
    longer = ("--device", "cpu", "--resume", "--tokens", 2 * TOKENS)
    message = "; without --tokens, --resume continues as planned"
    assert_rejected(folder, "batch_plan.py", longer, 1, message)


@dataclass(frozen=True)
class Split:
    """How the batch is divided."""

    processes: int
    micro_batch: int


ONE_PROCESS = Split(1, 512)
TWO_PROCESSES = Split(2, 128)


@dataclass(frozen=True)
class Stopped:
    """A run that stops while the batch grows, and resumes with another split."""

    before: Split
    after: Split
    question: int
    """It stops when it asks for the n-th time whether to stop: after each update if one process
    trains, after each tenth if two do."""
    consumed: int
    """The tokens of the growing batch up to there."""


STOPPED = [
    # 25 updates of the constant batch, 20 of 512 tokens, 5 of 1024.
    Stopped(ONE_PROCESS, TWO_PROCESSES, question=25 + 20 + 5, consumed=15_360),
    # Questions after updates 10 and 20 of the constant batch, and after 10 of 512 tokens.
    Stopped(TWO_PROCESSES, ONE_PROCESS, question=2 + 1, consumed=5_120),
]


ADVICE = "batch_plan_checkpoints resumes with --resume"


@pytest.mark.parametrize("case", STOPPED, ids=["two processes resume", "one process resumes"])
def test_run_stopped_mid_ramp_resumes_at_the_same_token(
    case: Stopped, ran: RunOnce, tmp_path: Path
) -> None:
    """And ends as the uninterrupted run: with equal learning rates and almost equal losses."""
    expected_folder, expected_lines = ran("batch_plan.py")
    script = Path(__file__).with_name("stopped_batch_plan.py")
    options = (*SMALL_RUNS["batch_plan.py"].split(), "--micro-batch", case.before.micro_batch)
    processes = case.before.processes
    lines = run(tmp_path, script, case.question, *options, processes=processes, status=130)
    assert lines[-1] == f"stopped after {case.consumed} tokens; {ADVICE}"
    before_stop = logged_updates(tmp_path, "growing")
    assert before_stop[-1]["consumed"] == case.consumed

    options = ("--resume", "--micro-batch", case.after.micro_batch)
    lines = run(tmp_path, "batch_plan.py", *options, processes=case.after.processes)
    assert lines[1].endswith(f"tokens; {case.consumed} are done")
    assert lines[-4:-1] == expected_lines[-4:-1]
    assert_same_updates(tmp_path, expected_folder, "constant")
    assert_same_updates(tmp_path, expected_folder, "growing")
    updates = logged_updates(tmp_path, "growing")
    assert updates[: len(before_stop)] == before_stop


def assert_same_updates(folder: Path, expected_folder: Path, name: str) -> None:
    """The learning rates have the same bits for any split of the batch."""
    updates = logged_updates(folder, name)
    expected_updates = logged_updates(expected_folder, name)
    for update, expected in zip(updates, expected_updates, strict=True):
        for column in ("applied", "consumed", "curve_step", "lr"):
            assert update[column] == expected[column], column
        assert update["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_two_processes_save_together_on_ctrl_c(tmp_path: Path) -> None:
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


@dataclass(frozen=True)
class Comparison:
    """A line of the table of `--seesaw`: a cosine with a constant batch, and Seesaw."""

    batch: float
    cosine_updates: float
    seesaw_updates: float
    peak: float
    cosine_loss: float
    cosine_error: float
    seesaw_loss: float
    difference: float
    error_of_difference: float


def read_comparison(line: str) -> Comparison:
    figures = line.replace("→", "").replace("±", "").split()
    return Comparison(*[float(figure) for figure in figures])


def test_seesaw_makes_fewer_updates_on_equal_data(tmp_path: Path) -> None:
    """The program itself compares learning rates and weights."""
    tokens = 8192
    lines = run(tmp_path, "batch_plan.py", "--seesaw", 2, "--tokens", tokens)
    assert lines[0].startswith(f"{tokens} tokens in each run, 2 seeds")
    for line, batch in zip(lines[2:-3], (64, 512, 4096), strict=True):
        comparison = read_comparison(line)
        assert comparison.batch == batch
        assert comparison.cosine_updates == tokens / batch
        if comparison.cosine_updates > 2:
            assert comparison.seesaw_updates < comparison.cosine_updates
        peak = 4e-3 * math.sqrt(batch / 1024)
        assert comparison.peak == pytest.approx(peak, abs=1e-6)
        difference = comparison.seesaw_loss - comparison.cosine_loss
        assert comparison.difference == pytest.approx(difference, abs=2e-4)
    assert lines[-3:] == [
        "without a warmup, in batches of 1024: 8 updates, and 6 of Seesaw;",
        "stopped after 5 and resumed, it ends with the same weights",
        "PyTorch and JAX have the same learning rates at every update",
    ]
