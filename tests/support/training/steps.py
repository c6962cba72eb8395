"""Training steps over the small models, the loop that they must match, and trees of tensors."""

import copy
import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import call
from typing import Any, cast

import pytest
import torch
from hypothesis import strategies as st
from support.training.models import Batch, Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from torch import Tensor, nn

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep

CURVE = PlateauCurve(40, warmup_steps=4, plateaus=[(20, 30)], min_lr_ratio=0.1, init_lr_ratio=0.5)


class CountingStep(TrainStep):
    """A step of programs that call it without `count`.

    Args:
        count: `count(batch)` returns what a micro-batch consumes.
        arguments, options: As `TrainStep` takes them.
    """

    def __init__(self, *arguments: Any, count: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._count_of = count

    def __call__(self, *micro_batches: Any, **options: Any) -> Any:
        return super().__call__(*micro_batches, count=sum(map(self._count_of, micro_batches)), **options)


def step_over(*arguments: Any, **options: Any) -> TrainStep:
    """Return a step, which counts what it is given if there is an option `count`."""
    return (CountingStep if "count" in options else TrainStep)(*arguments, **options)


def make_step(
    name: str = "adamw",
    model: nn.Module | None = None,
    loss_fn: Callable[..., Any] = mean_loss,
    curve: Any = CURVE,
    optimizer: Any = None,
    **options: Any,
) -> TrainStep:
    model = Net() if model is None else model
    optimizer = make_optimizer(name, model) if optimizer is None else optimizer
    return step_over(model, optimizer, loss_fn, curve, **options)


def set_loss_scale(step: TrainStep, scale: float, good_updates: int = 0) -> None:
    state = step.state_dict()
    state["loss_scale"] = [torch.tensor(scale), torch.tensor(good_updates, dtype=torch.int32)]
    step.load_state_dict(state)


def is_refused(step: TrainStep) -> bool:
    """Return True if the step asks for a state; neither an update nor its own state is to be had then."""
    with suppress(RuntimeError):
        step.state_dict()
        return False
    for call_step in (lambda: step(*batches(1)), step.state_dict):
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            call_step()
    return True


def state_kept_by_skips(step: TrainStep) -> dict[str, Any]:
    """Return the state without learning rates, random numbers and the loss scale's counter."""
    state = cast("dict[str, Any]", step.state_dict())
    state["loss_scale"] = state["loss_scale"] and state["loss_scale"][0]
    states = [state["optimizer"]] if len(step.optimizers) == 1 else state["optimizer"]
    for group in (group for state_dict in states for group in state_dict["param_groups"]):
        del group["lr"]
    del state["random"]
    return state


def check_resume(
    build: Callable[[], TrainStep],
    updates: Sequence[Any],
    stops: Iterable[int] = (5,),
    run: Callable[..., Any] = call,
) -> None:
    """Compare a run with one that new steps resume from a file at each of these updates.

    Every second load takes place in inference mode, with another default device. The states have the
    versions of the modules, as torch's have.
    """
    seed = torch.default_generator.manual_seed  # torch.manual_seed records a traceback each time
    seed(1)
    uninterrupted, states = build(), dict[int, Any]()
    results: list[Any] = []
    for number, update in enumerate([*updates, None]):
        if number in stops:
            state: Any = uninterrupted.state_dict()
            assert state["model"]._metadata == cast("Any", uninterrupted.model.state_dict())._metadata
            states[number] = state, copy.deepcopy(state)
        if number < len(updates):
            results.append(run(uninterrupted, update))
    end = torch.rand(3), uninterrupted.state_dict()

    seed(1)
    step, done = build(), 0
    for turn, at in enumerate(sorted(states)):
        assert equal_trees([run(step, update) for update in updates[done:at]], results[done:at])
        state, kept = states[at]
        assert equal_trees(state, kept), "later updates have changed the snapshot"
        assert equal_trees(step.state_dict(), kept)
        loaded = through_file(state)
        seed(99)
        step, done = build(), at
        for update in updates[2 : 2 + (at + 1) % 3]:  # so that loading must overwrite something
            run(step, update)
        with torch.inference_mode(turn % 2 == 0), torch.device("meta" if turn % 2 == 0 else "cpu"):
            step.load_state_dict(loaded)
        assert equal_trees(step.state_dict(), kept)
        assert equal_trees(loaded, kept), "the caller's state was changed"
    assert equal_trees([run(step, update) for update in updates[done:]], results[done:])
    assert equal_trees((torch.rand(3), step.state_dict()), end)


def skip_patterns(size: int) -> st.SearchStrategy[list[bool]]:
    """Draw runs of skipped and of applied updates, from none skipped to all."""
    return st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1).map(
        lambda runs: [skip for skip, length in runs for _ in range(length)][:size]
    )


def train(step: TrainStep, updates: Iterable[Batch]) -> list[Any]:
    return [step(batch) for batch in updates]


def equal_trees(one: Any, other: Any) -> bool:
    """Return True if two trees are equal, tensors in values and dtypes (NaN equals NaN)."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict) and isinstance(other, dict):
        first, second = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        return first.keys() == second.keys() and all(equal_trees(first[key], second[key]) for key in first)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pair = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(pair[0]) == len(pair[1]) and all(map(equal_trees, *pair))
    return bool(one == other)


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
