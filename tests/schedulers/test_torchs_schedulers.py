"""A curve next to torch's own schedulers: in sequences, in chains, and taking turns."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import advance, lrs_of, optimizer_with
from support.training.trees import through_file
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def _wide(lr):
    return torch.tensor(lr, dtype=torch.float64)


def _curve_then_cosine(optimizer):
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 50, eta_min=0.01)
    return [lr_scheduler.SequentialLR(optimizer, [lambda_lr(optimizer, CURVE), cosine], [20])]


def _constant_then_curve(optimizer):
    constant = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=100)
    return [lr_scheduler.SequentialLR(optimizer, [constant, lambda_lr(optimizer, CURVE)], [20])]


def _curve_and_decay(optimizer):
    decay = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return [lr_scheduler.ChainedScheduler([lambda_lr(optimizer, CURVE), decay], optimizer)]


def _curve_then_averaging(optimizer):
    return [lambda_lr(optimizer, CURVE), SWALR(optimizer, swa_lr=0.03, anneal_epochs=10)]


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
@pytest.mark.parametrize(
    "build", [_curve_then_cosine, _constant_then_curve, _curve_and_decay, _curve_then_averaging]
)
@examples(15)
@given(
    st.one_of(st.integers(1, 40), st.sampled_from((19, 20, 21))),
    st.booleans(),
    st.sampled_from((float, _wide)),
)
def test_resume_with_other_schedulers_matches(build, saved_at, optimizer_first, form):
    def start():
        optimizer = optimizer_with([form(0.5), form(0.25)])
        return optimizer, build(optimizer)

    def train(optimizer, schedulers, steps):
        """Return the learning rates of these steps; a second scheduler takes over at step 20."""
        lrs = []
        for step in steps:
            optimizer.step()
            schedulers[-1 if step >= 20 else 0].step()
            lrs.append(lrs_of(optimizer))
        return lrs

    optimizer, schedulers = start()
    train(optimizer, schedulers, range(saved_at))
    saved = through_file([part.state_dict() for part in (optimizer, *schedulers)])
    expected = [lrs_of(optimizer), *train(optimizer, schedulers, range(saved_at, saved_at + 30))]

    optimizer, schedulers = start()
    order = [optimizer, *schedulers] if optimizer_first else [*schedulers, optimizer]
    for part, state in zip(order, saved if optimizer_first else [*saved[1:], saved[0]], strict=True):
        part.load_state_dict(state)
    assert [lrs_of(optimizer), *train(optimizer, schedulers, range(saved_at, saved_at + 30))] == expected


_composed: dict[str, Any] = {
    "first": lambda optimizer, ours: lr_scheduler.SequentialLR(
        optimizer, [ours, lr_scheduler.ConstantLR(optimizer, 0.5, 99)], [20]
    ),
    "second": lambda optimizer, ours: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 0.5, 99), ours], [20]
    ),
    "chained": lambda optimizer, ours: lr_scheduler.ChainedScheduler([ours], optimizer),
}


@pytest.mark.filterwarnings("ignore:the curve stayed at step 0:plateau_jax.CurveWarning")
@pytest.mark.parametrize("place", _composed)
@examples(20)
@given(st.lists(st.integers(0, 60), min_size=41, max_size=41), st.integers(0, 39), st.booleans())
def test_clock_inside_torchs_schedulers(
    place: str, given_counts: list[int], saved_at: int, optimizer_first: bool
) -> None:
    def start() -> tuple[Any, Any, Any]:
        optimizer = optimizer_with([0.5])
        ours = lambda_lr(optimizer, CURVE, unit=8, count=lambda: given_counts[update])
        return optimizer, ours, _composed[place](optimizer, ours)

    def clock(update: int) -> int | None:
        """Return the clock of our scheduler after this many updates; None if it is not its turn."""
        if place == "second":
            return sum(given_counts[20:update]) // 8 if update >= 20 else None
        return sum(given_counts[:update]) // 8 if update < 20 or place == "chained" else None

    optimizer, ours, scheduler = start()
    for update in range(41):
        expected = clock(update)
        assert lrs_of(optimizer) == [0.25 if expected is None else 0.5 * CURVE(expected)]
        assert expected is None or ours.clock == expected
        if update == saved_at:
            saved = through_file([optimizer.state_dict(), scheduler.state_dict()])
            since = 20 if place == "second" else 0
            resumed, again, composed = start()
            pairs = list(zip((resumed, composed), saved, strict=True))
            for part, state in pairs if optimizer_first else pairs[::-1]:
                part.load_state_dict(state)
            assert lrs_of(resumed) == lrs_of(optimizer)
            assert (again.consumed, again.last_epoch) == (ours.consumed, ours.last_epoch)
            assert expected is None or again.consumed == sum(given_counts[since:update])
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("place", ["first", "second", "chained"])
def test_count_function_is_called_once_per_update(place: str) -> None:
    pending = 0

    def take() -> int:
        nonlocal pending
        taken, pending = pending, 0
        return taken

    optimizer = optimizer_with([0.5])
    ours = lambda_lr(optimizer, CURVE, unit=8, count=take)
    scheduler = _composed[place](optimizer, ours)
    for update in range(40):
        pending += 100 + update
        optimizer.step()
        scheduler.step()
    since, until = (20, 40) if place == "second" else (0, 19 if place == "first" else 40)
    assert ours.consumed == sum(range(100 + since, 100 + until))


@pytest.mark.parametrize("place", _composed)
def test_torchs_schedulers_need_count_function(place: str) -> None:
    optimizer = optimizer_with([0.5])
    scheduler = _composed[place](optimizer, lambda_lr(optimizer, CURVE, unit=8))
    with pytest.raises(TypeError, match=r"with unit = 8, .*count=, a function without arguments"):
        advance(optimizer, scheduler, 22)
