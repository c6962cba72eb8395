"""`LossRun` and the logged losses of a fit: copies, checks, and every error with its advice."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.lr_sums import schedule_sums

CURVE = PlateauCurve(1000, warmup_steps=50)
STEPS = np.arange(20, 1001, 20)


def losses_of(curve, steps, noise=0.0, exponent=0.5):
    errors = noise * np.random.default_rng(0).standard_normal(len(steps))
    progress, noise_sums = schedule_sums(curve, 1.0, steps)
    return (2 + (progress / 500) ** -exponent + 0.1 * noise_sums**0.8) * (1 + errors)


LOSSES = losses_of(CURVE, STEPS, 5e-4)


def test_run_copies_its_arrays() -> None:
    steps, losses = STEPS.copy(), LOSSES.copy()
    run = LossRun(CURVE, 1e-3, steps, losses)
    steps[:], losses[:] = 0, 0
    for same in (run, copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        np.testing.assert_array_equal(same.steps, STEPS)
        np.testing.assert_array_equal(same.losses, LOSSES)
        assert same.steps.dtype == np.int64
        assert same.losses.dtype == np.float64
        assert same.curve == CURVE
        assert repr(same) == repr(run)
        for array in (same.steps, same.losses):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(FrozenInstanceError):
        run.peak_value = 1  # pyright: ignore[reportAttributeAccessIssue]  (what is tested)
    assert "steps=20…1000" in repr(run)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"curve": 3}, TypeError, "curve = 3 must be a Curve"),
        ({"peak_value": 0}, ValueError, "peak_value = 0 must be positive"),
        ({"peak_value": "1"}, TypeError, "peak_value = '1' must be a number"),
        ({"steps": [1, 2]}, ValueError, "steps has 2 items and losses has 3"),
        ({"steps": []}, ValueError, "there are no logged losses"),
        ({"steps": [1, 3, 3]}, ValueError, r"steps must increase: steps\[1\] = 3, steps\[2\] = 3; a "),
        ({"steps": [0, 1, 2]}, ValueError, r"steps\[0\] = 0 must be at least 1"),
        ({"steps": [1, 2, 1001]}, ValueError, r"steps\[-1\] = 1001 lies after the end .* total_steps = 1000"),
        ({"steps": [1.0, 2.0, 3.0]}, TypeError, "must be a sequence of integers"),
        ({"steps": 5}, TypeError, "steps = 5 must be a sequence of integers"),
        ({"losses": [1.0, float("nan"), 1.0]}, ValueError, r"losses\[1\] = nan must be finite and positive"),
        ({"losses": [1.0, 0.0, 1.0]}, ValueError, r"losses\[1\] = 0\.0 must be finite and positive"),
        ({"losses": [1.0, 1e300, 1.0]}, ValueError, r"losses\[1\] = 1e\+300 must be .* in float32"),
        ({"losses": [1.0, 1e-300, 1.0]}, ValueError, r"losses\[1\] = 1e-300 must be .* positive in float32"),
        ({"losses": [1.0, 10**400, 1.0]}, TypeError, r"losses = .*1000.* must be a sequence of numbers"),
        ({"steps": [1, [2], 3]}, TypeError, r"steps = \[1, \[2\], 3\] must be a sequence of integers"),
        ({"losses": "high"}, TypeError, r"losses\[0\] = 'high' must be a real number"),
        ({"losses": [3.0, "2.0", 1.0]}, TypeError, r"losses\[1\] = '2\.0' must be a real number"),
        ({"losses": [3.0, 2.0, True]}, TypeError, r"losses\[2\] = True must be a real number"),
        ({"losses": np.ones(3, bool)}, TypeError, r"losses\[0\] = .*True.* must be a real number"),
        ({"losses": np.ones(3, complex)}, TypeError, r"losses\[0\] = .*j.* must be a real number"),
        ({"losses": [3.0, 2j, 1.0]}, TypeError, r"losses\[1\] = 2j must be a real number"),
    ],
)  # fmt: skip
def test_wrong_logged_losses_are_rejected(change, error, message) -> None:
    arguments = {"curve": CURVE, "peak_value": 1e-3, "steps": [10, 20, 30], "losses": [3, 2, 1]}
    LossRun(**arguments)
    with pytest.raises(error, match=message):
        LossRun(**arguments | change)


def run_with(steps=STEPS, losses=None, curve=CURVE):
    return LossRun(curve, 1e-3, steps, losses_of(curve, steps, 5e-4) if losses is None else losses)


STABLE = StagedCurve([(50, 1.0), (950,)])
NOISY = LOSSES * (1 + 0.02 * np.random.default_rng(0).standard_normal(len(STEPS)))
RISING = np.where(STEPS > 700, LOSSES[STEPS <= 700][-1] * (1 + (STEPS - 700) / 3000), LOSSES)
# Falls slowly, then fast, so that no power describes it.
STEPPED = LOSSES - 0.6 / (1 + np.exp(-(STEPS - 500) / 40))


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        *((runs, "must be a LossRun: write LossRun") for runs in (None, 3, "run", [run_with(), LOSSES])),
        ([], r"there is no run: write fit_losses\(\[run, ...\]\)"),
        ([run_with(STEPS[::3])], "fit needs at least 20: log the loss more often"),
        ([run_with(STEPS[STEPS < 400])], "no run's learning rate falls to half its peak .* with a decay"),
        ([run_with(curve=STABLE)] * 2, "no run's learning rate falls to half its peak"),
        ([run_with(losses=NOISY)], "noise of 1.*, more than 1%: log a validation loss"),
        ([run_with(losses=RISING)], "the loss rises from .* while the learning rate does not"),
        ([run_with(losses=np.full(len(STEPS), 3.0))], "its scale is 0.*: log a longer run"),
        ([run_with(losses=STEPPED)], "law misses these losses by .*: it fails in the first fast phase"),
        ([run_with(), run_with(losses=LOSSES + 0.3)], "fit runs of one model and one data set"),
    ],
)
def test_unfit_runs_are_rejected(runs, message) -> None:
    with pytest.raises(TypeError if "LossRun" in message else ValueError, match=message):
        fit_losses(runs)
    fit_losses([run_with(), run_with(curve=STABLE)])  # a stable run next to one that decays


def test_early_losses_do_not_count() -> None:
    """Nor those of the warmup, however many there are."""
    early = np.arange(1, 50)
    with_early = np.r_[early, STEPS[STEPS > 80]]
    losses = np.r_[np.linspace(11, 7, len(early)), LOSSES[STEPS > 80]]
    expected = fit_losses(run_with(STEPS[STEPS > 80], LOSSES[STEPS > 80]))
    fit = fit_losses(run_with(with_early, losses))
    assert fit.predict(CURVE) == expected.predict(CURVE)


def test_zeros_at_the_start_are_no_warmup() -> None:
    """Updates at learning rate 0, at which torch's own warmups begin, change nothing."""
    delayed = StagedCurve([(100,), (50, 1.0), (950, 0.0, "cosine")], start=0.0)
    plain = StagedCurve([(50, 1.0), (950, 0.0, "cosine")], start=0.0)
    losses = losses_of(plain, STEPS, 5e-4)
    fit, expected = (
        fit_losses(LossRun(curve, 1e-3, steps, losses))
        for curve, steps in ((delayed, STEPS + 100), (plain, STEPS))
    )
    assert fit.predict(delayed).loss == pytest.approx(expected.predict(plain).loss, rel=1e-3)


@examples(20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.35, 0.55), st.sampled_from(["cosine", "linear", "1-sqrt"]))
def test_losses_of_the_law_are_accepted(seed, exponent, shape) -> None:
    curve = PlateauCurve(2000, warmup_steps=40, decay_shape=shape)
    steps = np.arange(25, 2001, 25)
    noise = 2e-3 * np.random.default_rng(seed).standard_normal(len(steps))
    run = LossRun(curve, 1e-3, steps, losses_of(curve, steps, exponent=exponent) * (1 + noise))
    forecast = fit_losses(run).predict(curve)
    assert forecast.low < losses_of(curve, steps, exponent=exponent)[-1] < forecast.high
