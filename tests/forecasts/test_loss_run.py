"""`LossRun` copies what it is given; which of its losses a fit uses."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.forecasts.law_runs import changed, logged, losses_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses

CURVE = PlateauCurve(1000, warmup_steps=50)
RUN = logged(CURVE)


def test_run_copies_its_arrays() -> None:
    steps, losses = RUN.steps.copy(), RUN.losses.copy()
    run = LossRun(CURVE, 1e-3, steps, losses)
    steps[:], losses[:] = 0, 0
    for same in (run, copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        np.testing.assert_array_equal(same.steps, RUN.steps)
        np.testing.assert_array_equal(same.losses, RUN.losses)
        assert (same.steps.dtype, same.losses.dtype) == (np.int64, np.float64)
        assert same.curve == CURVE
        assert repr(same) == repr(run)
        for array in (same.steps, same.losses):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(FrozenInstanceError):
        run.peak_value = 1  # pyright: ignore[reportAttributeAccessIssue]  (what is tested)
    assert "steps=20…1000" in repr(run)


def test_early_losses_do_not_count() -> None:
    """Nor those of the warmup, however many there are."""
    late = changed(RUN, RUN.losses, RUN.steps > 80)
    early = np.arange(1, 50)
    with_early = LossRun(
        CURVE, 1e-3, np.r_[early, late.steps], np.r_[np.linspace(11, 7, len(early)), late.losses]
    )
    assert fit_losses(with_early).predict(CURVE) == fit_losses(late).predict(CURVE)


def test_zeros_at_the_start_are_no_warmup() -> None:
    """Updates at learning rate 0, at which torch's own warmups begin, change nothing."""
    delayed = StagedCurve([(100,), (50, 1.0), (950, 0.0, "cosine")], start=0.0)
    plain = logged(StagedCurve([(50, 1.0), (950, 0.0, "cosine")], start=0.0))
    fit = fit_losses(LossRun(delayed, 1e-3, plain.steps + 100, plain.losses))
    expected = fit_losses(plain).predict(plain.curve).loss
    assert fit.predict(delayed).loss == pytest.approx(expected, rel=1e-3)


@examples(16)
@given(st.integers(0, 10**6), st.floats(0.35, 0.55), st.sampled_from(["cosine", "linear", "1-sqrt"]))
def test_losses_of_the_law_are_accepted(seed, exponent, shape) -> None:
    curve = PlateauCurve(2000, warmup_steps=40, decay_shape=shape)
    forecast = fit_losses(logged(curve, 25, 2e-3, exponent=exponent, seed=seed)).predict(curve)
    assert forecast.low < losses_of(curve, [2000], 0.0, exponent)[0] < forecast.high
