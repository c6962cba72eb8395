"""An update interrupted at any line took place, changed nothing, or makes the step reject the next one."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import Lines, Stop
from support.training.kinds_of_run import KINDS
from support.training.models import batches
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees

from torch_bridge import TrainStep

OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def interrupted(
    build: Callable[[], TrainStep], action: Callable[[TrainStep], Any], every: int = 1
) -> Iterator[TrainStep]:
    """Yield steps whose action was interrupted at each line, or at each n-th."""
    for stop_at in itertools.count(1, every):
        step = build()
        try:
            with Lines(stop_at, OPTIMIZERS):
                action(step)
        except Stop:
            # Python does not leave a `with` that is interrupted at its end.
            while torch.is_autocast_enabled("cpu"):
                torch.set_autocast_enabled("cpu", False)
                torch.autocast_decrement_nesting()
            yield step
        else:
            return


@pytest.mark.parametrize(
    ("kind", "updates", "precision", "every"),
    [
        ("held", 1, "fp16", 12),
        ("aux, bf16", 1, "bf16", 16),
        *(
            pytest.param(*row, 1, marks=pytest.mark.slow)
            for row in (
                *(("adamw", 2, "fp32"), ("adamw", 1, "fp16"), ("momentum", 0, "fp32")),
                *(("plain adam", 1, "fp16"), ("two optimizers", 2, "fp32")),
            )
        ),
    ],
)
def test_update_interrupted_at_any_line(kind: str, updates: int, precision: str, every: int) -> None:
    """Under fp16 its gradients overflow, so it is skipped, and the loss scale is halved."""

    def build() -> TrainStep:
        step = KINDS[kind].build(precision=precision)
        train(step, data[:updates])
        return step

    data = batches(updates + 2)
    if precision == "fp16":
        data[updates] = data[updates][0], data[updates][1] * 1e4
    uninterrupted = build()
    state = uninterrupted.state_dict()
    states, results = [state_kept_by_skips(uninterrupted)], list[Any]()
    for batch in data[updates:]:
        results.append(uninterrupted(batch))
        states.append(state_kept_by_skips(uninterrupted))
    outcomes = set[str]()
    for step in interrupted(build, lambda step: step(data[updates]), every):
        if is_rejected := step._steppers.is_partial:
            for call in (step.state_dict, lambda step=step: step(data[updates])):
                with pytest.raises(RuntimeError, match="an update was interrupted"):
                    call()
            step.load_state_dict(state)
        took_place = sum(step.state_dict()[count] for count in ("applied", "skipped")) > updates
        outcomes.add("rejected" if is_rejected else "took place" if took_place else "nothing changed")
        assert equal_trees(state_kept_by_skips(step), states[took_place])
        assert equal_trees(step(data[updates + took_place]), results[took_place])
    assert every > 1 or outcomes == {"took place", "nothing changed", "rejected"}


def test_set_peak_interrupted_at_any_line() -> None:
    def build() -> TrainStep:
        step = make_step("adamw")
        train(step, data[:3])
        return step

    data = batches(4)
    state = build().state_dict()
    for step in interrupted(build, lambda step: step.set_peak(0.25)):
        if step._steppers.is_partial:
            step.load_state_dict(state)
        peak = step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"]
        assert step(data[3]).lr.item() == torch.tensor(CURVE(3) * peak).item()
