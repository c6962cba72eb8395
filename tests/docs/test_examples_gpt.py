"""The GPT example prints the same with one process or two, interrupted, and resumed with either number."""

import math
import shutil

import pytest
from support.programs import finish, interrupt, later_lines, number_after, start, torchrun

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

SMALL = ("--batch-size", "4", "--context", "32", "--width", "32", "--layers", "2")
GPT = (
    *("train_gpt.py", "--steps", "200", "--every", "20", "--precision", "bf16", "--accumulation", "2"),
    *SMALL,
)
FEW = ("train_gpt.py", "--steps", "12", "--every", "6", *SMALL)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """The folder and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("gpt")
    return folder, finish(start(folder, *GPT))


def test_model_beats_byte_frequencies(gpt):
    _, lines = gpt
    model_loss, frequency_loss = (
        number_after(label, lines) for label in ("loss of the model:", "loss of byte frequencies:")
    )
    assert model_loss < frequency_loss < math.log(256)


@pytest.mark.parametrize("line_before", ["", "update 30:"])
def test_resume_prints_same_lines_as_uninterrupted_run(gpt, tmp_path, line_before):
    _, uninterrupted = gpt
    # Interrupt between two of the compared lines, which are 20 updates apart.
    updates = interrupt(start(tmp_path, *GPT, "--every", "30"), line_before)
    resumed = finish(start(tmp_path, *GPT, "--resume"))
    assert resumed[0] == f"resumed from train_gpt_checkpoints after update {updates}"
    assert resumed[1:] == later_lines(uninterrupted, updates)


def test_muon_and_adamw_beat_byte_frequencies(tmp_path):
    lines = finish(start(tmp_path, "train_gpt.py", "--optimizer", "muon", "--steps", "60", "--every", "60"))
    assert number_after("loss of the model:", lines) < number_after("loss of byte frequencies:", lines)


def test_log_keeps_only_the_rows_of_the_next_mean(gpt):
    """Checkpoints do not grow with the number of updates."""
    folder, lines = gpt
    log = MetricLog()
    assert Checkpoints(folder / "train_gpt_checkpoints").load(log=log) == 200
    assert [row["applied"] for row in log.rows] == list(range(181, 201))
    mean = sum(row["loss"] for row in log.rows) / len(log.rows)
    assert f"update 200: loss {mean:.4f}," in "\n".join(lines)


def test_resume_uses_settings_of_the_checkpoint(gpt):
    folder, lines = gpt
    resumed = finish(start(folder, "train_gpt.py", "--resume"))
    assert resumed[1:] == [line for line in lines if not line.startswith("update ")]


def test_resume_under_another_curve_is_rejected(gpt):
    folder, _ = gpt
    status, _, errors = start(folder, "train_gpt.py", "--resume", "--steps", "5").finish()
    assert status == 1
    _, error = errors.splitlines()  # after the expected cost
    assert error.startswith("train_gpt.py: state_dict cannot resume at step ")
    assert errors.endswith("; without --steps, --resume continues as planned\n")


def lines_with_losses(lines):
    return [line for line in lines if "loss" in line]


def test_losses_agree_for_any_number_of_processes(tmp_path):
    """The numbers of processes that save and that resume do not change the losses."""
    parallelisms = (None, "ddp", "fsdp")
    folders = {parallelism: tmp_path / str(parallelism) for parallelism in parallelisms}

    def run(parallelism, folder, *arguments):
        folder.mkdir(exist_ok=True)
        if parallelism is None:
            return lines_with_losses(finish(start(folder, *arguments)))
        first, *rest = torchrun(folder, *arguments, "--distribute", parallelism, "--checkpoint-activations")
        lines = finish(first)
        assert [finish(program) for program in rest] == [[]] * len(rest)
        return lines_with_losses(lines)

    expected = run(None, folders[None], *FEW)
    assert len(expected) == 4
    for parallelism in parallelisms[1:]:
        assert run(parallelism, folders[parallelism], *FEW) == expected
    for saved in parallelisms:
        for number, parallelism in enumerate(parallelisms):
            folder = tmp_path / f"{saved} {number}"
            copied = folder / "train_gpt_checkpoints"
            shutil.copytree(folders[saved] / "train_gpt_checkpoints", copied)
            for last in copied.glob("12*"):
                shutil.rmtree(last)
            assert run(parallelism, folder, "train_gpt.py", "--resume") == expected[1:]


def test_two_processes_stop_together(tmp_path):
    first, second = torchrun(tmp_path, *FEW, "--steps", "100000", "--distribute", "ddp")
    updates = interrupt(first, "update 6:")
    assert finish(second, status=130) == []
    assert updates % 10 == 0


def test_global_batch_is_split_into_micro_batches(tmp_path):
    lines = finish(start(tmp_path, *FEW, "--global-batch", "12"))
    assert "an update: 1 micro-batches of 12 sequences" in lines
