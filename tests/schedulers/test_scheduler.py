"""The learning rates of `lambda_lr`, step by step, and its rejections."""

from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions_and_steps
from support.examples import examples
from support.numerics.oracle import Oracle, exactly, half_ulp
from support.schedulers.driven import Driven
from support.schedulers.runs import advance, lrs_of, optimizer_with, peaks
from support.training.trees import through_file
from torch.optim.lr_scheduler import LambdaLR, _warn_get_lr_called_within_step

from plateau_jax import PlateauCurve, optax_schedule
from torch_bridge import CurveLR, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


@examples(50)
@given(descriptions_and_steps(size=8))
def test_lambdas_return_python_floats_of_the_curve(case):
    description, steps = case
    curve, oracle = build(description), Oracle(description)
    scheduler = lambda_lr(optimizer_with([0.1, 0.2]), curve)
    assert isinstance(scheduler, LambdaLR)
    assert len(scheduler.lr_lambdas) == 2
    for factor_at in scheduler.lr_lambdas:
        for step in steps:
            factor, exact = factor_at(step), oracle(step)
            assert type(factor) is float
            assert factor == curve(step)
            assert abs(exactly(factor) - exact) <= half_ulp(exact) + Fraction(1, 2**58)


@pytest.mark.slow
@examples(10)
@given(descriptions_and_steps(size=36), peaks)
def test_lrs_equal_those_of_optax(case, peak):
    description, steps = case
    curve = build(description)
    steps = [abs(step) for step in steps]
    lrs = []
    for step in steps:
        optimizer = optimizer_with([peak])
        lambda_lr(optimizer, curve, last_epoch=step - 1)
        lrs += lrs_of(optimizer)
    lrs = np.array(lrs)
    schedule = optax_schedule(curve, peak)

    # XLA flushes subnormal float32 numbers, so they are outside the promise.
    promised = (lrs == 0) | (lrs >= 2.0**-126)
    for x64, dtype in ((True, np.float64), (False, np.float32)):
        with jax.enable_x64(x64):
            values = np.asarray(schedule(np.array(steps)))
        assert values.dtype == dtype
        np.testing.assert_array_equal(values[promised], lrs[promised])


@pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning")
def test_long_run_follows_curve_over_all_windows():
    curves = [
        PlateauCurve(6000, warmup_steps=100, plateaus=[(20, 20)]),
        PlateauCurve(5000, decay_shape="linear"),
    ]
    optimizer = optimizer_with([3e-4, 0.7])
    scheduler = lambda_lr(optimizer, curves)
    lrs = [lrs_of(optimizer)]
    for _ in range(6500):
        advance(optimizer, scheduler)
        lrs.append(lrs_of(optimizer))
    steps = np.arange(6501)
    expected = [curve.learning_rate(steps, peak) for peak, curve in zip((3e-4, 0.7), curves, strict=True)]
    np.testing.assert_array_equal(np.array(lrs).T, expected)


@example(2**63 - 5)
@given(st.integers(CURVE.total_steps, 2**80))
def test_lr_is_constant_past_the_end(step):
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=step - 1)
    for _ in range(3):
        assert lrs_of(optimizer) == [0.5 * float(np.float32(0.1))]
        advance(optimizer, scheduler)
    assert scheduler.last_epoch == step + 3


_WRONG_EPOCHS = 0.5, 2.5, 3.0, True, "3", "x", float("nan"), np.float32(3), (3,)
_LOSSES = torch.tensor(0.5), torch.tensor(3), torch.ones(()).requires_grad_()


@pytest.mark.parametrize("epoch", [*_WRONG_EPOCHS, *_LOSSES], ids=repr)
@pytest.mark.parametrize("steps", [0, 4])
def test_epoch_of_wrong_type_is_rejected(epoch, steps):
    run = Driven("scheduler", CURVE)
    run.advance(steps)
    message = r"epoch = .* must be an integer: step\(\) takes a loss only with hold="
    run.rejects(TypeError, message, lambda: run.part.step(epoch))


@given(st.integers(max_value=-1))
def test_negative_epoch_is_saved_and_loaded(epoch):
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.step()
    with pytest.warns(UserWarning, match="epoch parameter"):
        scheduler.step(epoch)
    assert lrs_of(optimizer) == [0.5 * CURVE(epoch)]
    again = lambda_lr(optimizer_with([0.5]), CURVE)
    again.load_state_dict(through_file(scheduler.state_dict()))
    assert again.state_dict() == scheduler.state_dict()


def test_no_numpy_scalar_reaches_groups_or_states():
    optimizer = optimizer_with([np.float64(0.1), np.float32(0.2), 1])
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=np.int32(-1))
    advance(optimizer, scheduler, 3)
    with pytest.warns(UserWarning, match="epoch parameter"):
        scheduler.step(np.int64(20))
    for group in optimizer.param_groups:
        assert type(group["lr"]) is type(group["initial_lr"]) is float
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    assert through_file(state) == state


@given(peaks, peaks)
def test_peak_is_initial_lr_in_float32(lr, peak):
    optimizer = optimizer_with([lr, lr])
    optimizer.param_groups[1]["initial_lr"] = peak
    first = lambda_lr(optimizer, CURVE)
    expected = [float(np.float32(lr)), float(np.float32(peak))]
    assert first.base_lrs == [group["initial_lr"] for group in optimizer.param_groups] == expected
    advance(optimizer, first, 5)
    again = lambda_lr(optimizer, CURVE, last_epoch=9)
    assert again.base_lrs == lrs_of(optimizer) == expected


class _TooFew(CurveLR):
    def get_lr(self) -> Any:
        return super().get_lr()[:1]


def test_get_lr_with_too_few_values_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"1 learning rates for 2 parameter groups"):
        _TooFew(optimizer_with([0.1, 0.2]), CURVE)


class _InTorchsPattern(CurveLR):
    def get_lr(self) -> Any:
        _warn_get_lr_called_within_step(self)
        return super().get_lr()


def test_get_lr_in_torchs_pattern_does_not_warn() -> None:
    optimizer = optimizer_with([0.1])
    advance(optimizer, _InTorchsPattern(optimizer, CURVE), 3)
