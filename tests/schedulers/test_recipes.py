"""What `docs/pytorch.md` builds from several schedulers: saved at any update, loaded in any order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import learning_rate, lrs_of, optimizer_with
from support.training.steps import through_file
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, ReduceLROnPlateau

from plateau_jax import PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr

WARMUP, UPDATES = 10, 60
PEAKS = (0.5, 1e-3)
CURVE = PlateauCurve(UPDATES, warmup_steps=WARMUP)
WARMUP_CURVE = StagedCurve([(WARMUP, 1.0)])
DECAY, RISING = 0.2, StagedCurve([(UPDATES, 1.0, "cosine")], start=0.1)

Parts = dict[str, Any]
"""An optimizer and its schedulers, by name."""
kinds = st.sampled_from((torch.optim.SGD, torch.optim.AdamW))
forms = st.sampled_from((float, partial(torch.tensor, dtype=torch.float32)))


def with_warmup(kind: Any, form: Any, make_warmup: Callable[[Any], Any]) -> Parts:
    optimizer = optimizer_with([form(peak) for peak in PEAKS], kind)
    warmup = make_warmup(optimizer)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    return {"optimizer": optimizer, "warmup": warmup, "plateau": plateau}


def curve_warmup(optimizer: Any) -> lambda_lr:
    return lambda_lr(optimizer, WARMUP_CURVE)


def torch_warmup(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda update: min(1.0, update / WARMUP))


def train_in_turn(parts: Parts, first: int, last: int, losses: list[float]) -> list[list[float]]:
    """Make updates `first` to `last`; return the learning rates of each."""
    used: list[list[float]] = []
    for update in range(first, last + 1):
        used.append(lrs_of(parts["optimizer"]))
        parts["optimizer"].step()
        if update <= WARMUP:
            parts["warmup"].step()
        elif update % 5 == 0:
            parts["plateau"].step(losses[update // 5])
    return used


@examples(40)
@given(
    kind=kinds,
    form=forms,
    saved_at=st.integers(1, UPDATES - 1),
    order=st.permutations(("optimizer", "warmup", "plateau")),
    losses=st.lists(st.sampled_from((1.0, 2.0)), min_size=13, max_size=13),
)
def test_plateau_after_warmup_resumes(
    kind: Any, form: Any, saved_at: int, order: list[str], losses: list[float]
) -> None:
    uninterrupted = train_in_turn(with_warmup(kind, form, curve_warmup), 1, UPDATES, losses)
    of_torch = train_in_turn(with_warmup(kind, form, torch_warmup), 1, UPDATES, losses)
    np.testing.assert_allclose(uninterrupted, of_torch, rtol=3 * 2.0**-24)

    run = with_warmup(kind, form, curve_warmup)
    train_in_turn(run, 1, saved_at, losses)
    saved = through_file({name: part.state_dict() for name, part in run.items()})
    resumed = with_warmup(kind, form, curve_warmup)
    for name in order:
        resumed[name].load_state_dict(saved[name])
    assert train_in_turn(resumed, saved_at + 1, UPDATES, losses) == uninterrupted[saved_at:]


def chained(*, scheduler_first: bool) -> Parts:
    optimizer = optimizer_with(PEAKS, torch.optim.AdamW, weight_decay=DECAY)
    both = [lambda_lr(optimizer, CURVE), follow(optimizer, "weight_decay", RISING)]
    if not scheduler_first:
        both.reverse()
    return {"optimizer": optimizer, "scheduler": ChainedScheduler(both)}  # pyright: ignore[reportArgumentType] -- a follower has the methods that it needs


def train_chained(parts: Parts, first: int, last: int) -> list[Any]:
    used: list[Any] = []
    for _ in range(first, last + 1):
        decays = [group["weight_decay"] for group in parts["optimizer"].param_groups]
        assert parts["scheduler"].get_last_lr() == lrs_of(parts["optimizer"])
        used.append((lrs_of(parts["optimizer"]), decays))
        parts["optimizer"].step()
        parts["scheduler"].step()
    return used


@examples(20)
@given(
    scheduler_first=st.booleans(),
    saved_at=st.integers(1, UPDATES - 1),
    order=st.permutations(("optimizer", "scheduler")),
)
def test_chained_follower_resumes(scheduler_first: bool, saved_at: int, order: list[str]) -> None:
    expected: list[Any] = []
    for update in range(UPDATES):
        lrs = [learning_rate(peak, CURVE, update) for peak in PEAKS]
        expected.append((lrs, 2 * [learning_rate(DECAY, RISING, update)]))

    run = chained(scheduler_first=scheduler_first)
    assert train_chained(run, 1, saved_at) == expected[:saved_at]
    saved = through_file({name: part.state_dict() for name, part in run.items()})
    resumed = chained(scheduler_first=scheduler_first)
    for name in order:
        resumed[name].load_state_dict(saved[name])
    assert train_chained(resumed, saved_at + 1, UPDATES) == expected[saved_at:]


def train_alone(parts: Parts, updates: int) -> list[list[float]]:
    used: list[list[float]] = []
    for _ in range(updates):
        used.append(lrs_of(parts["optimizer"]))
        parts["optimizer"].step()
        parts["scheduler"].step()
    return used


def changed_optimizer(changed_at: int, peaks: tuple[float, ...]) -> Parts:
    optimizer = optimizer_with(peaks, momentum=0.9)
    return {"optimizer": optimizer, "scheduler": lambda_lr(optimizer, CURVE, last_epoch=changed_at - 1)}


@examples(20)
@given(
    changed_at=st.integers(1, UPDATES - 1),
    more=st.integers(0, UPDATES),
    peaks=st.sampled_from(((0.1,), (0.1, 1e-4, 0.7))),
    order=st.permutations(("optimizer", "scheduler")),
)
def test_another_optimizer_continues_the_curve(
    changed_at: int, more: int, peaks: tuple[float, ...], order: list[str]
) -> None:
    saved_at = min(changed_at + more, UPDATES)
    expected: list[list[float]] = []
    for update in range(UPDATES):
        current = PEAKS if update < changed_at else peaks
        expected.append([learning_rate(peak, CURVE, update) for peak in current])

    first = optimizer_with(PEAKS, torch.optim.AdamW)
    run: Parts = {"optimizer": first, "scheduler": lambda_lr(first, CURVE)}
    used = train_alone(run, changed_at)
    run = changed_optimizer(changed_at, peaks)
    used += train_alone(run, saved_at - changed_at)
    saved = through_file({name: part.state_dict() for name, part in run.items()})
    resumed = changed_optimizer(changed_at, peaks)
    for name in order:
        resumed[name].load_state_dict(saved[name])
    assert used + train_alone(resumed, UPDATES - saved_at) == expected
