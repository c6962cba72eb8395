"""An optimizer that was resumed while the curve was not: one warning, at the first update."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees, through_file

from plateau_jax import CurveWarning
from torch_bridge import TrainStep

_COUNTED = ["adamw", "adagrad", "plain adam", "rmsprop"]


def _saved_after(updates: int, name: str = "adamw") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of the optimizer and of the step after a short run."""
    step = make_step(name)
    train(step, batches(updates))
    return through_file(step.optimizer.state_dict()), through_file(step.state_dict())


def _loaded_first(state: Any, name: str = "adamw", **options: Any) -> TrainStep:
    model = Net()
    optimizer = make_optimizer(name, model)
    optimizer.load_state_dict(state)
    return TrainStep(model, optimizer, mean_loss, CURVE, **options)


def _loaded_later(state: Any, name: str = "adamw", **options: Any) -> TrainStep:
    step = make_step(name, **options)
    step.optimizer.load_state_dict(state)
    return step


_EITHER_ORDER = pytest.mark.parametrize("resume", [_loaded_first, _loaded_later])


@_EITHER_ORDER
@pytest.mark.parametrize("name", _COUNTED)
def test_resumed_optimizer_under_new_curve_warns_once(resume: Callable[..., TrainStep], name: str) -> None:
    state, _ = _saved_after(3, name)
    step, (batch,) = resume(state, name), batches(1)
    message = r"the optimizer has made 3 updates, but the curve starts at step 0: .*initial_updates=3, or"
    with pytest.warns(CurveWarning, match=message) as caught:
        step(batch)
    assert caught[0].filename == __file__, "the line of the call"
    train(step, [batch] * 3)


@_EITHER_ORDER
def test_momentum_warns_without_a_number(resume: Callable[..., TrainStep]) -> None:
    state, _ = _saved_after(3, "momentum")
    with pytest.warns(CurveWarning, match=r"has made updates, .*initial_updates=n, or"):
        resume(state, "momentum")(*batches(1))


@_EITHER_ORDER
def test_clock_of_samples_is_offered_no_number_of_updates(resume: Callable[..., TrainStep]) -> None:
    state, _ = _saved_after(3)
    options: dict[str, Any] = {"unit": 2, "count": lambda batch: len(batch[0])}
    with pytest.warns(CurveWarning, match=r"load_state_dict\(state\), or, if .*initial_updates=0$"):
        resume(state, **options)(*batches(1))
    resume(state, **options, initial_updates=0)(*batches(1))


@_EITHER_ORDER
@pytest.mark.parametrize("name", [*_COUNTED, "momentum"])
def test_each_way_out_of_the_message_is_silent(resume: Callable[..., TrainStep], name: str) -> None:
    optimizer_state, state = _saved_after(3, name)
    loaded = resume(optimizer_state, name)
    loaded.load_state_dict(state)
    data = batches(2)
    results = train(loaded, data)
    assert [int(result.clock) for result in results] == [3, 4]
    loaded.optimizer.load_state_dict(optimizer_state)  # rolled back in mid-run
    train(loaded, data)
    assert int(resume(optimizer_state, name, initial_updates=3)(*data[:1]).clock) == 3
    assert int(resume(optimizer_state, name, initial_updates=0)(*data[:1]).clock) == 0


def test_state_loaded_before_the_optimizers_is_silent() -> None:
    """A trainer may load the step first."""
    optimizer_state, state = _saved_after(3)
    step = make_step()
    step.load_state_dict(state)
    step.optimizer.load_state_dict(optimizer_state)
    assert int(step(*batches(1)).clock) == 3


@pytest.mark.parametrize("name", [*_COUNTED, "momentum", "sgd"])
def test_optimizer_without_updates_is_silent(name: str) -> None:
    step, data = make_step(name), batches(2)
    step.optimizer.load_state_dict(step.optimizer.state_dict())
    other = TrainStep(step.model, step.optimizer, mean_loss, CURVE)  # they alternate
    train(step, data)
    train(other, data)
    assert equal_trees([other(data[0]).applied], [torch.tensor(3)])
