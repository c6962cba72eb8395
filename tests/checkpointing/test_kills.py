"""A training run that is killed repeatedly ends with the same bits as one that never was."""

import random
import threading

import pytest
import torch
from support.programs import finish, start, torchrun
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints, MetricLog

pytestmark = pytest.mark.slow

GPT = (
    *("train_gpt.py", "--steps", "60", "--every", "3", "--batch-size", "4", "--context", "32"),
    *("--width", "32", "--layers", "1", "--checkpoint-activations"),
)
FOLDER = "train_gpt_checkpoints"


class Anything:
    """A part that keeps any state it is given."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        self.state = state_dict


def run(folder, way, *arguments):
    if way is None:
        return [start(folder, *arguments)]
    return torchrun(folder, *arguments, "--distribute", way)


def last_state(folder):
    step, feed, log = Anything(), Anything(), MetricLog()
    assert Checkpoints(folder / FOLDER).load(step=step, feed=feed, log=log) == 60
    return step.state, feed.state, log.rows


@pytest.mark.parametrize(("way", "kills", "seed"), [(None, 14, 0), ("ddp", 3, 1), ("fsdp", 3, 2)])
def test_killed_runs_match_uninterrupted_run(tmp_path, way, kills, seed):
    uninterrupted, interrupted = tmp_path / "whole", tmp_path / "killed"
    uninterrupted.mkdir()
    interrupted.mkdir()
    expected, *_ = [finish(program) for program in run(uninterrupted, way, *GPT)]
    moments = random.Random(seed)
    for _ in range(kills):
        programs = run(
            interrupted, way, *GPT, *["--resume"] * (interrupted / FOLDER / "settings.json").exists()
        )
        for line in programs[0].lines():
            if line.startswith("update"):
                break
        threading.Event().wait(moments.uniform(0, 0.05))  # a moment of the save that has just begun
        moments.choice(programs).kill()
        for program in programs:
            program.kill()
            program.finish()
    resumed, *_ = [finish(program) for program in run(interrupted, way, *GPT, "--resume")]
    assert resumed[0].startswith(f"resumed from {FOLDER} after update ")
    assert resumed[-2:] == expected[-2:]
    ours, theirs = (pytree.tree_leaves(last_state(folder)) for folder in (interrupted, uninterrupted))
    assert len(ours) == len(theirs)
    for leaf, expected in zip(ours, theirs, strict=True):
        assert torch.equal(leaf, expected) if isinstance(leaf, torch.Tensor) else leaf == expected
    assert not list((interrupted / FOLDER).glob("*.partial"))
