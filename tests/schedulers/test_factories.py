"""`count_updates`; `get_cosine_plateau_schedule_with_warmup` compared with transformers' schedule."""

import math
from fractions import Fraction
from inspect import signature

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.strategies import magnitudes
from support.examples import examples
from support.schedulers.runs import FLOAT32_MAX, lrs_of, optimizer_with
from torch.utils.data import DataLoader

from plateau_jax import PlateauCurve
from torch_bridge import count_updates, get_cosine_plateau_schedule_with_warmup, lambda_lr

pytestmark = pytest.mark.usefixtures("short_windows")


def _transformers(step, warmup, total):
    if step < warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


@examples(50)
@given(magnitudes(1, 2**31 - 1), st.data())
def test_without_plateaus_equals_transformers_schedule(total, data):
    warmup = data.draw(magnitudes(0, total - 1))
    scheduler = get_cosine_plateau_schedule_with_warmup(optimizer_with([0.1]), warmup, total)
    for step in data.draw(st.lists(st.integers(0, total), min_size=20, max_size=20)):
        (factor_at,) = scheduler.lr_lambdas
        # Half a unit in the last place of float32 below 1, and the rounding errors of double arithmetic.
        assert abs(factor_at(step) - _transformers(step, warmup, total)) <= 2**-25 + 1e-15


@pytest.mark.filterwarnings("ignore:min_lr_ratio:plateau_jax.CurveWarning")
@given(st.floats(0, 1).filter(lambda ratio: ratio == 0 or ratio > 1e-30), st.integers(0, 120))
def test_alias_equals_lambda_lr_under_same_curve(ratio, step):
    curve = PlateauCurve(100, warmup_steps=20, plateaus=((10, 20), (50, 5)), min_lr_ratio=ratio)
    optimizer, expected = optimizer_with([0.1, 0.3]), optimizer_with([0.1, 0.3])
    scheduler = get_cosine_plateau_schedule_with_warmup(
        optimizer, 20, 100, [(10, 20), (50, 5)], min_lr_ratio=ratio, last_epoch=step - 1
    )
    reference = lambda_lr(expected, curve, last_epoch=step - 1)
    assert lrs_of(optimizer) == lrs_of(expected)
    scheduler.load_state_dict(reference.state_dict())


def test_alias_has_signature_of_transformers() -> None:
    """The arguments of transformers' function come first; hold, unit and count belong to lambda_lr."""
    names = list(signature(get_cosine_plateau_schedule_with_warmup).parameters)
    assert names[:3] == ["optimizer", "num_warmup_steps", "num_training_steps"]
    assert names[3:] == ["plateaus", "min_lr_ratio", "min_lr", "last_epoch", "strict"]
    for strict in (True, False):
        scheduler = get_cosine_plateau_schedule_with_warmup(optimizer_with([0.1]), 1, 9, strict=strict)
        assert scheduler.strict is strict


@given(
    st.lists(st.floats(2.0**-100, FLOAT32_MAX), min_size=1, max_size=4),
    st.one_of(st.just(0.0), st.just(1.0), st.floats(2.0**-20, 1)),
)
def test_min_lr_is_final_lr_of_every_group(peaks, share):
    min_lr = min(peaks) * share
    optimizer = optimizer_with(peaks)
    get_cosine_plateau_schedule_with_warmup(optimizer, 5, 50, min_lr=min_lr, last_epoch=49)
    for peak, lr in zip(peaks, lrs_of(optimizer), strict=True):
        # To the precision of a float32 ratio, and of the product; a subnormal one has fewer bits.
        lost = max(Fraction(min_lr) / 2**24, Fraction(peak) / 2**149)
        lost += max(Fraction(min_lr) / 2**24, Fraction(1, 2**149))
        assert abs(Fraction(lr) - Fraction(min_lr)) <= lost * Fraction(9, 8)


@given(st.floats(2.0**-126, FLOAT32_MAX), st.booleans())
def test_min_lr_may_equal_peak_before_rounding(peak, resumed):
    optimizer = optimizer_with([peak])
    if resumed:
        # The first scheduler has set the group's initial_lr to the rounded peak.
        get_cosine_plateau_schedule_with_warmup(optimizer, 0, 10, min_lr=peak)
    (factor_at,) = get_cosine_plateau_schedule_with_warmup(optimizer, 0, 10, min_lr=peak).lr_lambdas
    assert [factor_at(step) for step in range(12)] == [1.0] * 12


@pytest.mark.filterwarnings("ignore:min_lr_ratio:plateau_jax.CurveWarning")
@given(st.integers(1, 10**6).map(lambda parts: parts / 10**6))
def test_min_lr_equals_ratio_at_peak_1(floor):
    optimizer = optimizer_with([1.0])
    scheduler = get_cosine_plateau_schedule_with_warmup(optimizer, 5, 50, min_lr=floor)
    by_ratio = get_cosine_plateau_schedule_with_warmup(optimizer, 5, 50, min_lr_ratio=floor)
    scheduler.load_state_dict(by_ratio.state_dict())
    assert scheduler.state_dict() == by_ratio.state_dict()


@given(st.one_of(st.floats(min_value=0.2000001), st.floats(max_value=-1e-300), st.just(float("nan"))))
def test_min_lr_out_of_range_is_rejected(min_lr):
    with pytest.raises(ValueError, match=r"min_lr = "):
        get_cosine_plateau_schedule_with_warmup(optimizer_with([0.5, 0.2]), 1, 10, min_lr=min_lr)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_count_updates_equals_updates_of_a_loop(samples, size, accumulation, drop_last, epochs):
    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    updates = 0
    for _ in range(epochs):
        waiting = 0
        for _ in range(samples // size if drop_last else sum(1 for _ in range(0, samples, size))):
            waiting += 1
            if waiting == accumulation:
                updates, waiting = updates + 1, 0
        updates += waiting > 0
    if not updates:
        with pytest.raises(ValueError, match="the number of batches = 0 must be at least 1"):
            count_updates(loader, epochs, accumulation=accumulation)
        return
    batches = len(loader)
    for argument in (loader, batches, np.int32(batches), torch.tensor(batches), [0] * batches):
        result = count_updates(argument, epochs, accumulation=accumulation)
        assert (result, type(result)) == (updates, int)
    assert PlateauCurve(updates).total_steps == updates
