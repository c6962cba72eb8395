"""An update interrupted at any line took place, changed nothing, or makes the step reject the next one."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lines import Lines, Stop
from support.training.models import Net, batches, mean_loss
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees

from torch_bridge import TrainStep

_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def _fused_and_not() -> TrainStep:
    model = Net()
    fused = torch.optim.AdamW(model.first.parameters(), lr=0.01, fused=True)
    plain = torch.optim.RMSprop(model.last.parameters(), lr=0.01)
    return TrainStep(model, [fused, plain], mean_loss, CURVE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "updates", "precision"),
    [
        *(("adamw", 2, "fp32"), ("sgd", 1, "fp32"), ("momentum", 0, "fp32"), ("momentum", 2, "fp32")),
        *(("plain adam", 2, "fp32"), ("fused and not", 2, "fp32")),
        *(("adamw", 1, "fp16"), ("plain adam", 1, "fp16")),
    ],
)
def test_update_interrupted_at_any_line(kind: str, updates: int, precision: str) -> None:
    """Under fp16 its gradients overflow, so it is skipped, and the loss scale is halved."""

    def trained() -> TrainStep:
        step = _fused_and_not() if kind == "fused and not" else make_step(kind, precision=precision)
        train(step, data[:updates])
        return step

    data = batches(updates + 2)
    if precision == "fp16":
        data[updates] = data[updates][0], data[updates][1] * 1e4
    uninterrupted = trained()
    state = uninterrupted.state_dict()
    wholes = [state_kept_by_skips(uninterrupted)]
    results: list[Any] = []
    for batch in data[updates:]:
        results.append(uninterrupted(batch))
        wholes.append(state_kept_by_skips(uninterrupted))
    step = trained()
    with Lines(None, _OPTIMIZERS) as lines:
        step(data[updates])
    outcomes = set[str]()
    for number in range(1, lines.count + 1):
        step = trained()
        with pytest.raises(Stop), Lines(number, _OPTIMIZERS):
            step(data[updates])
        while torch.is_autocast_enabled(
            "cpu"
        ):  # Python does not leave a `with` that is interrupted at its end
            torch.set_autocast_enabled("cpu", False)
            torch.autocast_decrement_nesting()
        if is_rejected := step._steppers.is_partial:
            for call in (step.state_dict, lambda step=step: step(data[updates])):
                with pytest.raises(RuntimeError, match="an update was interrupted"):
                    call()
            step.load_state_dict(state)
        took_place = sum(step.state_dict()[count] for count in ("applied", "skipped")) > updates
        outcomes.add("rejected" if is_rejected else "took place" if took_place else "nothing changed")
        assert equal_trees(state_kept_by_skips(step), wholes[took_place]), f"at line {number}"
        assert equal_trees(step(data[updates + took_place]), results[took_place]), f"at line {number}"
    assert outcomes == {"took place", "nothing changed", "rejected"}


def test_set_peak_interrupted_at_any_line() -> None:
    data = batches(4)
    state: Any = None
    for stop_at in itertools.count(1):
        step = make_step("adamw")
        train(step, data[:3])
        state = state or step.state_dict()
        try:
            with Lines(stop_at, _OPTIMIZERS):
                step.set_peak(0.25)
        except Stop:
            if step._steppers.is_partial:
                step.load_state_dict(state)
        else:
            break
        peak = step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"]
        assert step(data[3]).lr.item() == torch.tensor(CURVE(3) * peak).item(), f"at line {stop_at}"


def test_aux_of_update_interrupted_at_any_line() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return mean_loss(model, batch), batch[0].sum()

    *several, last = batches(4)
    for stop_at in itertools.count(1):
        step = make_step("adamw", loss_fn=loss_fn, has_aux=True)
        try:
            with Lines(stop_at, _OPTIMIZERS):
                step(*several)
        except Stop:
            if not step._steppers.is_partial:
                assert step(last).aux == (last[0].sum(),), f"at line {stop_at}"
        else:
            break
