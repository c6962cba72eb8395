"""Warnings of a training step: a wrong program warns once, at the line of its call; a right one never."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training import steps
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, equal_trees, make_step, through_file, train

from plateau_jax import CurveWarning, DataClock, PlateauCurve
from torch_bridge import TrainStep

END, FLOOR, WARMUP = PlateauCurve(20), PlateauCurve(20, min_lr_ratio=0.1), PlateauCurve(40, warmup_steps=4)
STANDING = r"after {} updates the curve stays at step 0, .* consumed {} in units of {}\..*check the counts"


def counting(unit: int, count: Any, curve: Any = WARMUP) -> dict[str, Any]:
    return {"curve": curve, "clock": DataClock(unit), "count": count}


# Options of the step; updates that are silent, and those of which one warns; the message.
STANDING_STILL: list[tuple[dict[str, Any], int, int, str]] = [
    ({"curve": END}, 25, 30, "has total_steps = 20, .*so no weight changes"),
    # More than 1000 updates past the end, and at ten times the steps.
    ({"curve": FLOOR}, 1000, 120, "total_steps = 20, .* final value since step 20"),
    # A unit that is never full.
    (counting(1000, lambda batch: 5), 32, 40, STANDING.format(32, 160, 1000)),
    (counting(1, lambda batch: 0), 32, 40, STANDING.format(32, 0, 1)),
    (counting(1, lambda batch: torch.tensor(0)), 32, 40, STANDING.format(32, 0, 1)),
]


@pytest.mark.parametrize(
    ("name", "options", "silent", "updates", "message"),
    [("adamw", *row) for row in STANDING_STILL]
    + [("rmsprop", *row) for row in STANDING_STILL if row[1] < 100],
)
def test_run_that_stands_still_warns_once(
    name: str, options: dict[str, Any], silent: int, updates: int, message: str
) -> None:
    step, (batch,) = make_step(name, **options), batches(1)
    train(step, [batch] * silent)
    with pytest.warns(CurveWarning, match=message) as caught:
        train(step, [batch] * updates)
    assert len(caught) == 1
    assert caught[0].filename == steps.__file__, "the line of the call"
    step.state_dict()


def test_save_of_short_run_warns_of_unit() -> None:
    step, (batch,) = make_step(**counting(1000, len)), batches(1)
    train(step, [batch] * 19)
    step.state_dict()
    train(step, [batch])
    with pytest.warns(CurveWarning, match=STANDING.format(20, 40, 1000)):
        step.state_dict()


@pytest.mark.parametrize(
    ("options", "peak"),
    [
        (counting(40, len), 0.01),  # moves after 20 updates of 2
        (counting(1000, len), 0.0),
        (counting(1000, len, PlateauCurve(40, warmup_steps=4, init_lr_ratio=0.5)), 0.01),
        (counting(1000, len, PlateauCurve(40)), 0.01),
    ],
)
def test_right_run_is_silent(options: dict[str, Any], peak: float) -> None:
    step, (batch,) = make_step(**options), batches(1)
    step.set_peak(peak)
    train(step, [batch] * 120)
    step.state_dict()


def saved_after(updates: int, name: str = "adamw") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of the optimizer and of the step after a short run."""
    step = make_step(name)
    train(step, batches(updates))
    return through_file(step.optimizer.state_dict()), through_file(step.state_dict())


def loaded_first(state: Any, name: str = "adamw", **options: Any) -> TrainStep:
    model = Net()
    optimizer = make_optimizer(name, model)
    optimizer.load_state_dict(state)
    return TrainStep(model, optimizer, mean_loss, CURVE, **options)


def loaded_later(state: Any, name: str = "adamw", **options: Any) -> TrainStep:
    step = make_step(name, **options)
    step.optimizer.load_state_dict(state)
    return step


FORGOTTEN: list[tuple[str, dict[str, Any], str]] = [
    *(
        (name, {}, r"has made 3 updates, but the curve starts at step 0: .*initial_updates=3; or")
        for name in ("adamw", "adagrad", "plain adam", "rmsprop")
    ),
    ("momentum", {}, r"has made updates, .*initial_updates=n; or"),
    ("adamw", {"clock": DataClock(2)}, r"load_state_dict\(state\); or, if .*initial_updates=0$"),
    ("adamw", {"clock": DataClock(2, count=4)}, r"has made 3 updates, .*initial_updates=3; or, if"),
]


@pytest.mark.parametrize("resume", [loaded_first, loaded_later])
@pytest.mark.parametrize(("name", "options", "message"), FORGOTTEN)
def test_optimizer_resumed_without_its_curve_warns_once(
    resume: Callable[..., TrainStep], name: str, options: dict[str, Any], message: str
) -> None:
    """And each way out that the message names is silent."""
    (optimizer_state, state), (batch,) = saved_after(3, name), batches(1)
    step = resume(optimizer_state, name, **options)
    count: Any = {"count": 4} if options else {}
    with pytest.warns(CurveWarning, match=message) as caught:
        step(batch, **count)
    assert caught[0].filename == __file__, "the line of the call"
    for _ in range(3):
        step(batch, **count)
    assert int(resume(optimizer_state, name, **options, initial_updates=0)(batch, **count).curve_step) == 0
    if not options:
        assert int(resume(optimizer_state, name, initial_updates=3)(batch).curve_step) == 3
        loaded = resume(optimizer_state, name)
        loaded.load_state_dict(state)
        assert [int(result.curve_step) for result in train(loaded, [batch] * 2)] == [3, 4]
        loaded.optimizer.load_state_dict(optimizer_state)  # rolled back, or loaded after the step
        train(loaded, [batch] * 2)


@pytest.mark.parametrize("name", ["adamw", "adagrad", "plain adam", "rmsprop", "momentum", "sgd"])
def test_optimizer_without_updates_is_silent(name: str) -> None:
    step, data = make_step(name), batches(2)
    step.optimizer.load_state_dict(step.optimizer.state_dict())
    other = TrainStep(step.model, step.optimizer, mean_loss, CURVE)  # they alternate
    train(step, data)
    train(other, data)
    assert equal_trees([other(data[0]).applied], [torch.tensor(3)])
