"""An interrupted update or load took place, changed nothing, or makes the step ask for a state."""

import itertools
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support.lines import InterruptAtLine, Stop
from support.training.models import batches
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.trees import assert_equal_trees
from train_step.kinds_of_run import KINDS

from torch_bridge.training.train_step import status, step as train_step

TORCHS_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def interrupted(build, action, every=1):
    """Yield steps whose action was interrupted at each line, or at each n-th."""
    for stop_at in itertools.count(1, every):
        step = build()
        try:
            with InterruptAtLine(stop_at, TORCHS_OPTIMIZERS):
                action(step)
        except Stop:
            # Python does not leave a `with` that is interrupted at its end.
            while torch.is_autocast_enabled("cpu"):
                torch.set_autocast_enabled("cpu", False)
                torch.autocast_decrement_nesting()
            yield step
        else:
            return


def is_refused(step):
    """Return True if the step asks for a state; then it makes no update, and takes no peak."""
    with suppress(RuntimeError):
        step.state_dict()
        return False
    for call in (step.state_dict, lambda: step(*batches(1)), lambda: step.set_peak(0.5)):
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            call()
    return True


def updates_of(step):
    state = step.state_dict()
    return state["applied"] + state["skipped"]


def check_interrupted_update(name, updates, precision, every):
    """Interrupt the update after `updates`, and return what the interrupts led to."""
    data = batches(updates + 2)
    if precision == "fp16":
        # Its gradients overflow, so it is skipped, and the loss scale is halved.
        inputs, targets = data[updates]
        data[updates] = inputs, targets * 1e4

    def build():
        step = KINDS[name].build(precision=precision)
        train(step, data[:updates])
        return step

    uninterrupted = build()
    saved = uninterrupted.state_dict()
    before = state_kept_by_skips(uninterrupted)
    result = uninterrupted(data[updates])
    after = state_kept_by_skips(uninterrupted)
    next_result = uninterrupted(data[updates + 1])

    outcomes = set()
    for step in interrupted(build, lambda step: step(data[updates]), every):
        is_rejected = is_refused(step)
        if is_rejected:
            step.load_state_dict(saved)
        took_place = updates_of(step) > updates
        if took_place:
            outcomes.add("took place")
            assert_equal_trees(state_kept_by_skips(step), after)
            assert_equal_trees(step(data[updates + 1]), next_result)
            continue
        if is_rejected:
            outcomes.add("rejected")
        else:
            outcomes.add("nothing changed")
        assert_equal_trees(state_kept_by_skips(step), before)
        assert_equal_trees(step(data[updates]), result)
    return outcomes


@pytest.mark.parametrize(
    ("name", "precision", "every"), [("held", "fp16", 12), ("aux, bf16", "bf16", 16)]
)
def test_update_interrupted_at_some_lines(name, precision, every):
    check_interrupted_update(name, 1, precision, every)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "updates", "precision"),
    [
        ("adamw", 2, "fp32"),
        ("adamw", 1, "fp16"),
        ("momentum", 0, "fp32"),
        ("plain adam", 1, "fp16"),
        ("two optimizers", 2, "fp32"),
    ],
)
def test_update_interrupted_at_any_line(name, updates, precision):
    outcomes = check_interrupted_update(name, updates, precision, every=1)
    assert outcomes == {"took place", "nothing changed", "rejected"}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_set_peak_interrupted_at_any_line(every):
    *data, last = batches(4)

    def build():
        step = make_step("adamw")
        train(step, data)
        return step

    saved = build().state_dict()
    for step in interrupted(build, lambda step: step.set_peak(0.25), every):
        if is_refused(step):
            step.load_state_dict(saved)
        peak = step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"]
        assert step(last).lr.item() == torch.tensor(CURVE(3) * peak).item()


def trained_step(updates):
    """Return a trained step with two optimizers, fp16, a carry and a hold."""
    step = KINDS["a count as the carry, held"].build()
    train(step, batches(updates))
    return step


class Files(InterruptAtLine):
    """Records the file of each line."""

    def __init__(self, *traced):
        super().__init__(None, *traced)
        self.files = []

    def line(self, frame, event, argument):
        if event == "line":
            self.files.append(Path(frame.f_code.co_filename).name)
        return super().line(frame, event, argument)


@pytest.mark.slow
def test_interrupted_load():
    """At every line at which the step begins or ends a write, and at every third of the others.

    They are lines of this library, and of torch's optimizers and modules.
    """
    traced = [TORCHS_OPTIMIZERS, str(Path(torch.nn.modules.module.__file__))]
    state = trained_step(5).state_dict()
    reference = trained_step(3)
    before = reference.state_dict()
    (batch,) = batches(1)
    result = reference(batch)
    after = reference.state_dict()
    files_of_writes = {Path(module.__file__).name for module in (train_step, status)}
    step = trained_step(3)
    step.load_state_dict(before)
    with Files(*traced) as lines:
        step.load_state_dict(state)
    step.load_state_dict(before)
    for stop_at, file in enumerate(lines.files, 1):
        if stop_at % 3 != 0 and file not in files_of_writes:
            continue
        with pytest.raises(Stop), InterruptAtLine(stop_at, *traced):
            step.load_state_dict(state)
        if is_refused(step):
            step.load_state_dict(before)
        assert_equal_trees(step.state_dict(), before, f"state at line {stop_at}")
        if stop_at % 60 == 0:
            assert_equal_trees(step(batch), result, f"result after line {stop_at}")
            assert_equal_trees(step.state_dict(), after, f"state after line {stop_at}")
            step.load_state_dict(before)
    step.load_state_dict(state)
    assert_equal_trees(step.state_dict(), state)
