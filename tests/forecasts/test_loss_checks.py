"""Which losses a fit uses: not the first ones, nor spikes; averages and logs that begin late."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.forecasts.logs import kept_losses, logged, rows_of, with_losses

from plateau_jax import CurveWarning, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.forecasts.loss_checks import _problem_of_beginning
from plateau_jax.tools.forecasts.loss_groups import group_run

COSINE = PlateauCurve(2000, warmup_steps=50)
WSD = StagedCurve([(50, 1.0), (1450,), (500, 0.0)])
STABLE_THEN_COSINE = StagedCurve([(50, 1.0), (950,), (1000, 0.1, "cosine")])
CURVES = st.sampled_from([COSINE, WSD, STABLE_THEN_COSINE])
SEEDS = st.integers(0, 1000)
RUN = logged(WSD, 40, 1e-3, exponent=0.44)
LAG = "the losses seem to lag"
LATE = "the log seems to begin at a checkpoint. If it does, count steps from the first update"


@dataclass(frozen=True)
class Fitted:
    """A fit or its error, and the messages of the warnings."""

    fit: Any
    error: str
    messages: list[str]


def fitted(*runs):
    fit = None
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit = fit_losses(runs)
        except ValueError as exception:
            error = str(exception)
    for warning in caught:
        assert warning.category is CurveWarning
        assert warning.filename == __file__
    return Fitted(fit, error, [str(warning.message) for warning in caught])


# Averages that lag.


def moving_average(losses, decay):
    average = losses[0]
    averages = []
    for loss in losses:
        average = decay * average + (1 - decay) * loss
        averages.append(average)
    return np.array(averages)


def running_mean(losses):
    return np.cumsum(losses) / np.arange(1, len(losses) + 1)


RARELY_LOGGED = st.tuples(
    st.sampled_from([10, 40]), st.sampled_from([5e-4, 2e-3]), st.just((0.9, 0.99))
)
OFTEN_LOGGED = st.tuples(st.just(2), st.sampled_from([1e-3, 1e-2, 3e-2]), st.just((0.8, 0.9)))


@examples(16)
@given(CURVES, RARELY_LOGGED | OFTEN_LOGGED, SEEDS)
def test_averages_are_not_fitted_in_silence(curve, log, seed):
    """Means of a group are no worse fitted than independent ones. A rejection says it, too.

    A log has the steps between its losses, their noise, and the factors of EMAs that are noticed.
    """
    every, noise, decays = log
    run = logged(curve, every, noise, seed=seed, exponent=0.44)
    assert fitted(run).messages == []
    averages = [running_mean(run.losses)]
    averages += [moving_average(run.losses, decay) for decay in decays]
    for average in averages:
        result = fitted(with_losses(run, average))
        if result.error:
            assert "the law misses" not in result.error or f"; {LAG}" in result.error
        else:
            (message,) = result.messages
            assert message.startswith(LAG)


# Logs that begin late.


def cut(run, first):
    """Return a run of `WSD` as its log looks from a stable step on, counted from 0."""
    curve = StagedCurve([(1500 - first,), (500, 0.0)], start=1.0)
    is_kept = run.steps > first
    return LossRun(curve, run.peak_value, run.steps[is_kept] - first, run.losses[is_kept])


def without_curve(run):
    """Return a run as it is read from a log with its learning rates."""
    lrs = run.peak_value * run.curve(run.steps)
    return LossRun.read(rows_of(step=run.steps, loss=run.losses, lr=lrs))


@pytest.mark.parametrize("first", [400, 800])
def test_logs_from_a_checkpoint_are_rejected(first):
    late = cut(RUN, first)
    assert fitted(late).error.startswith(LATE)
    assert fitted(RUN, late).error.startswith(f"runs[1]: {LATE}")
    assert fitted(without_curve(late)).error.startswith(LATE)


def fast_phase(run, size, length):
    """Return a run whose losses fall faster at first, as those of small models do."""
    extra = size * np.exp(-run.steps / (length * run.steps[-1]))
    return with_losses(run, run.losses + extra)


def test_slow_first_phase_is_rejected_until_it_is_left_out():
    """The losses look like those of a log that begins late."""
    slow = fast_phase(RUN, -0.74, 0.1)
    assert _problem_of_beginning(fast_phase(RUN, -0.7, 0.1)) is None
    assert _problem_of_beginning(slow) is not None
    assert _problem_of_beginning(kept_losses(slow, slice(3, None))) is None


# Spikes.


@examples(16)
@given(CURVES, st.sampled_from([10, 40]), st.floats(1e-4, 3e-3), st.data())
def test_fit_leaves_spikes_out(curve, every, noise, data):
    run = logged(curve, every, noise, exponent=0.44)
    length = data.draw(st.integers(1, 2))
    size = data.draw(st.floats(1.1, 3))
    count = len(run.steps)
    first = data.draw(st.integers(count // 5, count - length - 1))
    is_spike = np.zeros(count, bool)
    is_spike[first : first + length] = True
    losses = np.where(is_spike, size * run.losses, run.losses)
    with_spike = fitted(with_losses(run, losses))
    spike_steps = ", ".join(map(str, run.steps[is_spike]))
    assert with_spike.messages == [f"the loss spikes at step {spike_steps}: left out"]
    without = fit_losses(kept_losses(run, ~is_spike))
    assert with_spike.fit.predict(curve) == without.predict(curve)


@examples(24)
@given(CURVES, st.sampled_from([2, 25]), st.sampled_from([0.0, 1e-3, 1e-2]), SEEDS)
def test_noise_is_not_a_spike(curve, every, noise, seed):
    run = logged(curve, every, noise, seed=seed, exponent=0.44)
    assert group_run(run, 0.03).spikes.tolist() == []


@pytest.mark.parametrize(
    ("begin", "factors"),
    [
        (25, [1.5] * 3),  # three in a row
        (25, [1.5, *[1.2] * 24]),  # recovers in part
        (23, [1.5, 1, 1, 1] * 6),  # again and again
        (48, [1.5] * 2),
    ],
)
def test_divergence_is_not_a_spike(begin, factors):
    losses = RUN.losses.copy()
    losses[begin : begin + len(factors)] *= factors
    result = fitted(with_losses(RUN, losses))
    assert "the run diverged or overfits" in result.error
    assert result.messages == []


def test_rise_at_the_end_is_not_a_spike():
    losses = RUN.losses.copy()
    losses[-1] *= 1.5
    losses[12] *= 1.5
    groups = group_run(with_losses(RUN, losses), 0.03)
    assert groups.spikes.tolist() == [RUN.steps[12]]


# The first losses.


def test_early_losses_do_not_count():
    """Nor those of the warmup, however many there are."""
    late = kept_losses(RUN, RUN.steps > 110)
    early_steps = np.arange(1, 111)
    early_losses = np.linspace(11, 7, 110)
    steps = np.concatenate([early_steps, late.steps])
    losses = np.concatenate([early_losses, late.losses])
    with_early = LossRun(WSD, 1e-3, steps, losses)
    assert fit_losses(with_early).predict(WSD) == fit_losses(late).predict(WSD)


def test_zeros_at_the_start_are_no_warmup():
    """Updates at learning rate 0, at which torch's own warmups begin, change nothing."""
    stages = [(50, 1.0), (950, 0.0, "cosine")]
    run = logged(StagedCurve(stages, start=0.0))
    delayed_curve = StagedCurve([(100,), *stages], start=0.0)
    delayed_run = LossRun(delayed_curve, 1e-3, run.steps + 100, run.losses)
    expected = fit_losses(run).predict(run.curve).loss
    forecast = fit_losses(delayed_run).predict(delayed_curve)
    assert forecast.loss == pytest.approx(expected, rel=1e-3)
