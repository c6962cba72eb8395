"""Recipes of `docs/pytorch.md` with several schedulers: saved anywhere, loaded in any order."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, ReduceLROnPlateau

from plateau_jax import Curve, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

WARMUP = 10
UPDATES = 60
PEAKS = (0.5, 1e-3)
CURVE = PlateauCurve(UPDATES, warmup_steps=WARMUP)
WARMUP_CURVE = StagedCurve([(WARMUP, 1.0)])
DECAY = 0.2
RISING = StagedCurve([(UPDATES, 1.0, "cosine")], start=0.1)

Parts = dict[str, Any]
"""An optimizer and its schedulers, by name."""


def states_of(parts: Parts) -> dict[str, Any]:
    """Return the states of all parts, as read from a file."""
    states = {name: part.state_dict() for name, part in parts.items()}
    return through_file(states)


def load(parts: Parts, states: dict[str, Any], order: Sequence[str]) -> None:
    for name in order:
        parts[name].load_state_dict(states[name])


def learning_rates(peaks: Sequence[float], curve: Curve, step: int) -> list[float]:
    return [learning_rate(peak, curve, step) for peak in peaks]


# A warmup, then ReduceLROnPlateau.


def with_warmup(kind: Any, form: Any, make_warmup: Callable[[Any], Any]) -> Parts:
    optimizer = optimizer_with([form(peak) for peak in PEAKS], kind)
    return {
        "optimizer": optimizer,
        "warmup": make_warmup(optimizer),
        "plateau": ReduceLROnPlateau(optimizer, factor=0.5, patience=1),
    }


def curve_warmup(optimizer: Any) -> lambda_lr:
    return lambda_lr(optimizer, WARMUP_CURVE)


def torch_warmup(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda update: min(1.0, update / WARMUP))


def train_in_turn(parts: Parts, first: int, last: int, losses: list[float]) -> list[list[float]]:
    """Make updates `first` to `last`; return the learning rates of each."""
    optimizer = parts["optimizer"]
    lrs: list[list[float]] = []
    for update in range(first, last + 1):
        lrs.append(lrs_of(optimizer))
        optimizer.step()
        if update <= WARMUP:
            parts["warmup"].step()
        elif update % 5 == 0:
            parts["plateau"].step(losses[update // 5])
    return lrs


float32_tensor = partial(torch.tensor, dtype=torch.float32)


@examples(40)
@given(
    kind=st.sampled_from((SGD, AdamW)),
    form=st.sampled_from((float, float32_tensor)),
    saved_at=st.integers(1, UPDATES - 1),
    order=st.permutations(("optimizer", "warmup", "plateau")),
    losses=st.lists(st.sampled_from((1.0, 2.0)), min_size=13, max_size=13),
)
def test_plateau_after_warmup_resumes(
    kind: Any, form: Any, saved_at: int, order: list[str], losses: list[float]
) -> None:
    uninterrupted = with_warmup(kind, form, curve_warmup)
    expected = train_in_turn(uninterrupted, 1, UPDATES, losses)
    under_torch = with_warmup(kind, form, torch_warmup)
    lrs_of_torch = train_in_turn(under_torch, 1, UPDATES, losses)
    np.testing.assert_allclose(expected, lrs_of_torch, rtol=3 * 2.0**-24)

    run = with_warmup(kind, form, curve_warmup)
    train_in_turn(run, 1, saved_at, losses)
    resumed = with_warmup(kind, form, curve_warmup)
    load(resumed, states_of(run), order)
    lrs = train_in_turn(resumed, saved_at + 1, UPDATES, losses)
    assert lrs == expected[saved_at:]


# A scheduler and a follower in a chain.


def chained(*, scheduler_first: bool) -> Parts:
    optimizer = optimizer_with(PEAKS, AdamW, weight_decay=DECAY)
    scheduler = lambda_lr(optimizer, CURVE)
    follower = follow(optimizer, "weight_decay", RISING)
    parts: list[Any] = [scheduler, follower]
    if not scheduler_first:
        parts.reverse()
    return {"optimizer": optimizer, "scheduler": ChainedScheduler(parts)}


def train_chained(parts: Parts, first: int, last: int) -> list[Any]:
    """Make updates `first` to `last`; return the learning rates and weight decays of each."""
    optimizer = parts["optimizer"]
    scheduler = parts["scheduler"]
    options: list[Any] = []
    for _ in range(first, last + 1):
        lrs = lrs_of(optimizer)
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        options.append((lrs, decays))
        assert scheduler.get_last_lr() == lrs
        optimizer.step()
        scheduler.step()
    return options


@examples(20)
@given(
    scheduler_first=st.booleans(),
    saved_at=st.integers(1, UPDATES - 1),
    order=st.permutations(("optimizer", "scheduler")),
)
def test_chained_follower_resumes(scheduler_first: bool, saved_at: int, order: list[str]) -> None:
    expected: list[Any] = []
    for update in range(UPDATES):
        lrs = learning_rates(PEAKS, CURVE, update)
        decay = learning_rate(DECAY, RISING, update)
        expected.append((lrs, [decay, decay]))

    run = chained(scheduler_first=scheduler_first)
    options = train_chained(run, 1, saved_at)
    assert options == expected[:saved_at]
    resumed = chained(scheduler_first=scheduler_first)
    load(resumed, states_of(run), order)
    options = train_chained(resumed, saved_at + 1, UPDATES)
    assert options == expected[saved_at:]


# A different optimizer from some update on.


def under_curve(optimizer: Optimizer, initial_updates: int) -> Parts:
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=initial_updates - 1)
    return {"optimizer": optimizer, "scheduler": scheduler}


def train(parts: Parts, updates: int) -> list[list[float]]:
    """Return the learning rates of each update."""
    lrs: list[list[float]] = []
    for _ in range(updates):
        lrs.append(lrs_of(parts["optimizer"]))
        parts["optimizer"].step()
        parts["scheduler"].step()
    return lrs


@examples(20)
@given(
    changed_at=st.integers(1, UPDATES - 1),
    more=st.integers(0, UPDATES),
    peaks=st.sampled_from(((0.1,), (0.1, 1e-4, 0.7))),
    order=st.permutations(("optimizer", "scheduler")),
)
def test_different_optimizer_continues_the_curve(
    changed_at: int, more: int, peaks: tuple[float, ...], order: list[str]
) -> None:
    saved_at = min(changed_at + more, UPDATES)
    first = under_curve(optimizer_with(PEAKS, AdamW), 0)
    second = under_curve(optimizer_with(peaks, momentum=0.9), changed_at)
    resumed = under_curve(optimizer_with(peaks, momentum=0.9), changed_at)

    lrs = train(first, changed_at)
    lrs += train(second, saved_at - changed_at)
    load(resumed, states_of(second), order)
    lrs += train(resumed, UPDATES - saved_at)

    expected: list[list[float]] = []
    for update in range(changed_at):
        expected.append(learning_rates(PEAKS, CURVE, update))
    for update in range(changed_at, UPDATES):
        expected.append(learning_rates(peaks, CURVE, update))
    assert lrs == expected
