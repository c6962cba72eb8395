"""Which losses a fit uses: not the first ones, nor spikes; and what it does with averages and late logs."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.examples import examples
from support.forecasts import loss_oracle
from support.forecasts.logs import changed, logged
from support.forecasts.loss_oracle import LossOracle

from plateau_jax import CurveWarning, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.logged_losses import group_run
from plateau_jax.forecasts.loss_checks import _lags

COSINE = PlateauCurve(2000, warmup_steps=50)
WSD = StagedCurve([(50, 1.0), (1450,), (500, 0.0)])
RESTARTS = StagedCurve([(50, 1.0), *[(200, 0.1, "cosine"), (1, 1.0)] * 9, (200, 0.0, "cosine")])
CURVES = st.sampled_from([COSINE, WSD, StagedCurve([(50, 1.0), (950,), (1000, 0.1, "cosine")])])
SEEDS = st.integers(0, 1000)
RUN = logged(WSD, 40, 1e-3, exponent=0.44)
SPIKE = "the loss spikes at step"
LAG = "the losses seem to lag"
LATE = "the log seems to begin at a checkpoint: step 0 must be the first update"
DIVERGED = "the run diverged or overfits"


def fitted(*runs: LossRun) -> tuple[Any, list[str]]:
    """Return the fit, or the error, and the messages of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = fit_losses(runs)
        except ValueError as error:
            result = error
    assert all(item.category is CurveWarning and item.filename == __file__ for item in caught)
    return result, [str(item.message) for item in caught]


def moving_average(losses: Any, decay: float) -> Any:
    means = [losses[0]]
    for loss in losses[1:]:
        means.append(decay * means[-1] + (1 - decay) * loss)
    return np.array(means)


@examples(60)
@given(
    CURVES, st.sampled_from([10, 16, 40]), st.floats(2e-4, 5e-3), SEEDS,
    st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, 0.99]),
)  # fmt: skip
def test_lags_are_those_of_the_oracle(curve, every, noise, seed, decay) -> None:
    """Of 200, 125 and 50 losses."""
    losses = moving_average(logged(curve, every, noise, seed=seed).losses, decay)
    assert _lags(losses) == loss_oracle.lags(losses.tolist())


# How often losses are logged, with which noise, and the factors of averages that are noticed.
LOGS = [
    *((every, noise, (0.9, 0.99)) for every in (10, 40) for noise in (5e-4, 2e-3)),
    *((2, noise, (0.8, 0.9)) for noise in (1e-3, 1e-2, 3e-2)),
]


@examples(16)
@given(CURVES, st.sampled_from(LOGS), SEEDS)
def test_averages_are_not_fitted_in_silence(curve, log, seed) -> None:
    """Means of a group are no worse fitted than independent ones. A rejection says it, too."""
    every, noise, decays = log
    run = logged(curve, every, noise, seed=seed, exponent=0.44)
    assert fitted(run)[1] == []
    running_mean = np.cumsum(run.losses) / np.arange(1, len(run.losses) + 1)
    for average in (running_mean, *(moving_average(run.losses, decay) for decay in decays)):
        result, messages = fitted(changed(run, average))
        is_misfit = isinstance(result, ValueError) and "the law misses" in str(result)
        assert not is_misfit or f"; {LAG}" in str(result)
        assert isinstance(result, ValueError) or [message.startswith(LAG) for message in messages] == [True]


@examples(12)
@given(
    st.sampled_from([COSINE, WSD]),
    st.sampled_from([4, 20, 40]),
    st.just((2e-5, 0.44)) | st.tuples(st.just(0.0), st.floats(0.35, 0.55)),
)
def test_losses_without_noise_do_not_lag(curve, every, noise_and_exponent) -> None:
    noise, exponent = noise_and_exponent
    run = logged(curve, every, noise, exponent=exponent)
    simple = 2.5 + 2 * run.steps**-exponent + 0.1 * curve(run.steps)
    assert fitted(run)[1] == fitted(changed(run, simple))[1] == []


def cut(run: LossRun, first: int) -> LossRun:
    """Return a run of `WSD` as its log looks from a step of the stable stage on, counted from 0."""
    curve = StagedCurve([(1500 - first,), (500, 0.0)], start=1.0)
    is_kept = run.steps > first
    return LossRun(curve, run.peak_value, run.steps[is_kept] - first, run.losses[is_kept])


@examples(6)
@given(st.sampled_from([1e-3, 3e-3]), SEEDS, st.sampled_from([0, 100, 110, 120, 130, 200]))
def test_late_starts_are_those_of_the_oracle(noise, seed, first) -> None:
    run = logged(WSD, 40, noise, seed=seed, exponent=0.44)
    run = cut(run, first) if first else run
    oracle = LossOracle([run])
    errors = [oracle.least_error(earlier) for earlier in (0, 0.1, 0.25, 0.5, 1)]
    assume(abs(errors[0] / min(errors) - 1.5) > 1e-3)
    result, _ = fitted(run)
    assert (isinstance(result, ValueError) and LATE in str(result)) == (errors[0] > 1.5 * min(errors))


@pytest.mark.parametrize("first", [400, 800])
def test_logs_from_a_checkpoint_are_rejected(first) -> None:
    late = cut(RUN, first)
    assert str(fitted(late)[0]).startswith(LATE)
    rows = [
        {"step": step, "loss": loss, "lr": 1e-3 * float(late.curve(step))}
        for step, loss in zip(late.steps.tolist(), late.losses.tolist(), strict=True)
    ]
    lacking = "the learning rates before step 40 are missing"  # more than 3 % of the steps
    assert str(fitted(LossRun.read(rows))[0]).startswith(LATE if first == 400 else lacking)
    assert str(fitted(RUN, late)[0]).startswith(f"runs[1]: {LATE}")


@examples(16)
@given(CURVES, st.sampled_from([10, 40]), st.floats(1e-4, 3e-3), st.data())
def test_fit_leaves_spikes_out(curve, every, noise, data) -> None:
    run = logged(curve, every, noise, exponent=0.44)
    length, size = data.draw(st.integers(1, 2)), data.draw(st.floats(1.1, 3))
    first = data.draw(st.integers(len(run.steps) // 5, len(run.steps) - length - 1))
    spikes = np.arange(first, first + length)
    losses = run.losses.copy()
    losses[spikes] *= size
    fit, messages = fitted(changed(run, losses))
    assert messages == [f"{SPIKE} {', '.join(map(str, run.steps[spikes]))}: left out"]
    without = np.delete(np.arange(len(losses)), spikes)
    assert fit.predict(curve) == fit_losses(changed(run, losses, without)).predict(curve)


@examples(24)
@given(
    st.sampled_from([COSINE, WSD, RESTARTS]), st.sampled_from([2, 25]), st.sampled_from([0.0, 1e-3, 1e-2]),
    SEEDS,
)  # fmt: skip
def test_noise_and_restarts_are_not_spikes(curve, every, noise, seed) -> None:
    run = logged(curve, every, noise, seed=seed, exponent=0.44)
    assert group_run(run, 0.03).spikes.tolist() == []


@pytest.mark.parametrize(
    ("place", "factors"),
    [
        (25, [1.5] * 3),  # three in a row
        (25, np.linspace(1.02, 1.5, 25)),
        (25, [1.5, *[1.2] * 24]),  # recovers in part
        (23, [1.5, 1, 1, 1] * 6),  # again and again
        (48, [1.5] * 2),
    ],
)
def test_divergence_is_not_a_spike(place, factors) -> None:
    losses = RUN.losses.copy()
    losses[place : place + len(factors)] *= factors
    error, messages = fitted(changed(RUN, losses))
    assert DIVERGED in str(error)
    assert messages == []


@pytest.mark.parametrize("place", [-1, 18])  # the last, and the first after a restart at step 452
def test_rises_at_the_end_and_at_restarts_are_not_spikes(place) -> None:
    run = logged(RESTARTS, 25, 1e-3, exponent=0.44)
    losses = run.losses.copy()
    losses[[place, 12]] *= 1.5
    assert group_run(changed(run, losses), 0.03).spikes.tolist() == [run.steps[12]]


def test_early_losses_do_not_count() -> None:
    """Nor those of the warmup, however many there are."""
    late = changed(RUN, RUN.losses, RUN.steps > 110)
    steps, losses = np.arange(1, 111), np.linspace(11, 7, 110)
    with_early = LossRun(WSD, 1e-3, np.r_[steps, late.steps], np.r_[losses, late.losses])
    assert fit_losses(with_early).predict(WSD) == fit_losses(late).predict(WSD)


def test_zeros_at_the_start_are_no_warmup() -> None:
    """Updates at learning rate 0, at which torch's own warmups begin, change nothing."""
    delayed = StagedCurve([(100,), (50, 1.0), (950, 0.0, "cosine")], start=0.0)
    plain = logged(StagedCurve([(50, 1.0), (950, 0.0, "cosine")], start=0.0))
    fit = fit_losses(LossRun(delayed, 1e-3, plain.steps + 100, plain.losses))
    expected = fit_losses(plain).predict(plain.curve).loss
    assert fit.predict(delayed).loss == pytest.approx(expected, rel=1e-3)
