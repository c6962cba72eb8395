"""`count_updates`; `get_cosine_plateau_schedule_with_warmup` compared with `lambda_lr`."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.schedulers.runs import FLOAT32_MAX, lrs_of, optimizer_with
from torch.utils.data import DataLoader

from plateau_jax import PlateauCurve
from torch_bridge import count_updates, get_cosine_plateau_schedule_with_warmup as cosine, lambda_lr

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    pytest.mark.filterwarnings("ignore:min_lr_ratio:plateau_jax.CurveWarning"),
]


@given(st.floats(0, 1).filter(lambda ratio: ratio == 0 or ratio > 1e-30), st.integers(0, 120), st.booleans())
def test_alias_equals_lambda_lr_under_same_curve(ratio: float, step: int, strict: bool) -> None:
    curve = PlateauCurve(100, warmup_steps=20, plateaus=((10, 20), (50, 5)), min_lr_ratio=ratio)
    optimizer, expected = optimizer_with([0.1, 0.3]), optimizer_with([0.1, 0.3])
    scheduler = cosine(
        optimizer, 20, 100, [(10, 20), (50, 5)], min_lr_ratio=ratio, last_epoch=step - 1, strict=strict
    )
    reference = lambda_lr(expected, curve, last_epoch=step - 1)
    assert lrs_of(optimizer) == lrs_of(expected)
    assert scheduler.strict is strict
    assert scheduler.state_dict() == reference.state_dict()


@given(
    st.lists(st.floats(2.0**-100, FLOAT32_MAX), min_size=1, max_size=4),
    st.sampled_from((0.0, 1.0)) | st.floats(2.0**-20, 1),
    st.booleans(),
)
def test_min_lr_is_final_lr_of_every_group(peaks: list[float], fraction: float, strict: bool) -> None:
    min_lr = min(peaks) * fraction
    optimizer = optimizer_with(peaks)
    scheduler = cosine(optimizer, 5, 50, min_lr=min_lr, last_epoch=49, strict=strict)
    assert scheduler.strict is strict
    for peak, lr in zip(peaks, lrs_of(optimizer), strict=True):
        # To the precision of a float32 ratio, and of the product; a subnormal one has fewer bits.
        lost = max(Fraction(min_lr) / 2**24, Fraction(peak) / 2**149)
        lost += max(Fraction(min_lr) / 2**24, Fraction(1, 2**149))
        assert abs(Fraction(lr) - Fraction(min_lr)) <= lost * Fraction(9, 8)


@given(st.floats(2.0**-126, FLOAT32_MAX), st.booleans())
def test_min_lr_may_equal_peak_before_rounding(peak: float, resumed: bool) -> None:
    optimizer = optimizer_with([peak])
    if resumed:
        # The first scheduler has set the group's initial_lr to the rounded peak.
        cosine(optimizer, 0, 10, min_lr=peak)
    (factor_at,) = cosine(optimizer, 0, 10, min_lr=peak).lr_lambdas
    assert [factor_at(step) for step in range(12)] == [1.0] * 12


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_count_updates_equals_updates_of_a_loop(
    samples: int, size: int, accumulation: int, drop_last: bool, epochs: int
) -> None:
    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    updates = 0
    for _ in range(epochs):
        waiting = 0
        for _ in loader:
            waiting += 1
            if waiting == accumulation:
                updates, waiting = updates + 1, 0
        updates += waiting > 0
    if not updates:
        return  # an error, which test_errors has
    batches = len(loader)
    for argument in (loader, batches, np.int32(batches), torch.tensor(batches), [0] * batches):
        result = count_updates(argument, epochs, accumulation=accumulation)
        assert (result, type(result)) == (updates, int)
