"""The fitted law and its forecasts equal those of an oracle; comparisons and plots show them."""

import copy
import itertools
import pickle
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.figure import Figure
from support.examples import examples
from support.forecasts.loss_oracle import LossOracle

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.forecasts.forecast_reasons import list_reasons
from plateau_jax.forecasts.loss_interval import ForecastTerms
from plateau_jax.forecasts.lr_sums import schedule_sums
from plateau_jax.validation.curve_warning import suppress_warnings

mpl.use("agg")


SHAPES = st.sampled_from(["cosine", "linear", "1-sqrt"])


def curves(total: int) -> st.SearchStrategy[PlateauCurve]:
    """Draw curves that fall to a third of their peak or less."""
    return st.builds(
        lambda warmup, shape, ratio, plateaus: PlateauCurve(
            total, warmup_steps=warmup, decay_shape=shape, min_lr_ratio=ratio, plateaus=plateaus
        ),
        st.integers(0, total // 10),
        SHAPES,
        st.sampled_from([0.0, 0.1, 0.3]),
        st.sampled_from([(), [(0, 80)], [(30, 20)]]),
    )


EVENLY = np.arange(20, 601, 20)
MOSTLY_EARLY = np.r_[np.arange(30, 121, 2), np.arange(150, 601, 75)]  # 7 after the first fifth


@st.composite
def trained(draw: Any) -> LossRun:
    """Draw a run whose losses follow the law, with some independent noise."""
    curve = draw(curves(600))
    steps = draw(st.sampled_from([EVENLY, MOSTLY_EARLY]))
    seed = draw(st.integers(0, 1000))
    floor, scale = draw(st.floats(0, 4)), draw(st.floats(0.3, 2))
    # Far from 0.44 the penalty on the exponent is a misfit, and the fit may be rejected.
    exponent, noise = draw(st.floats(0.3, 0.6)), draw(st.floats(0, 0.01))
    peak = draw(st.sampled_from([1e-3, 1.2e-3]))
    sums = np.array([LossOracle.sums(LossOracle.rates(curve, 1)[:step]) for step in steps]).T
    losses = floor + scale * (sums[0] / 200) ** -exponent + noise * sums[1] ** 0.8
    errors = 1e-3 * np.random.default_rng(seed).standard_normal(len(steps))
    with suppress_warnings():  # the first losses of a warmup may look like perplexities
        return LossRun(curve, peak, steps, losses * (1 + errors))


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", [1, 2])
@examples(8, deadline=None)
@given(st.data())
def test_forecasts_equal_those_of_the_oracle(count, data) -> None:
    runs = [data.draw(trained())]
    if count == 2:
        # Nearly of the same law: another curve with the losses of the first fit.
        curve = data.draw(st.one_of(curves(900), st.just(StagedCurve([(50, 1.0), (850,)]))))
        steps = np.arange(10, 901, 10)
        losses = fit_losses(runs).losses(curve, steps, runs[0].peak_value)
        losses = np.minimum(losses, 12) * data.draw(st.sampled_from([1.0, 1.008]))  # in nats
        runs.append(LossRun(curve, runs[0].peak_value, steps, losses))
    fit, oracle = fit_losses(runs), LossOracle(runs)
    named = {str(index): data.draw(curves(1200)) for index in range(2)}
    peak = 1.3 * runs[0].peak_value if data.draw(st.booleans()) else runs[0].peak_value
    comparison = fit.compare(named, peak)
    close(fit.residual_sd, oracle.residual())
    for curve, forecast in zip(named.values(), comparison.forecasts, strict=True):
        loss, half = oracle.forecast(curve, peak)
        close(forecast[:3], (loss, loss - half, loss + half))
        assert forecast == fit.predict(curve, peak)
        close(fit.losses(curve, [curve.total_steps], peak), [loss])
        terms = oracle.terms(curve, peak)
        for words, term, limit in (("first fifth", terms.c, 0.005), ("each run alone", terms.d, 0.006)):
            assert any(words in reason for reason in forecast.reasons) == (abs(term) > limit * loss)
    difference, half = oracle.difference(named["1"], named["0"], peak)
    if named["0"] != named["1"]:
        close(comparison.differences[1], (difference, difference - half, difference + half))
    assert comparison.differences[0] == (0, 0, 0)


CURVE = PlateauCurve(1000, warmup_steps=50)
STEPS = np.arange(10, 1001, 10)

with suppress_warnings():
    ZERO = StagedCurve([(1000,)], start=0.0)


def losses_of(curve: Any, steps: Any = STEPS, noise: float = 5e-4) -> Any:
    errors = noise * np.random.default_rng(0).standard_normal(len(steps))
    progress, noise_sums = schedule_sums(curve, 1.0, steps)
    losses = (2 + (progress / progress[-1]) ** -0.5 + 0.1 * noise_sums**0.8) * (1 + errors)
    return np.minimum(losses, 12)  # only those of the warmup are larger


RUN = LossRun(CURVE, 1e-3, STEPS, losses_of(CURVE))
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
OTHER = LossRun(WSD, 1e-3, np.arange(30, 1501, 30), FIT.losses(WSD, np.arange(30, 1501, 30)))


def test_runs_without_a_decay_are_not_fitted_alone() -> None:
    stable = StagedCurve([(50, 1.0), (950,)])
    losses = 1.004 * FIT.losses(stable, STEPS[10:])
    runs = [RUN, LossRun(stable, 1e-3, STEPS[10:], losses)]
    loss, half = LossOracle(runs).forecast(WSD, 1e-3)
    close(fit_losses(runs).predict(WSD)[:3], (loss, loss - half, loss + half))


@examples(20)
@given(st.permutations([RUN, OTHER]))
def test_order_of_runs_does_not_matter(runs) -> None:
    fit, expected = fit_losses(runs), fit_losses([RUN, OTHER])
    close(fit.predict(WSD)[:3], expected.predict(WSD)[:3])
    assert fit.runs == tuple(runs)


def test_units_of_the_learning_rate_do_not_matter() -> None:
    """Peaks ten times as high give the same law."""
    scaled = fit_losses(LossRun(CURVE, 1e-2, STEPS, RUN.losses))
    close(scaled.predict(WSD)[:3], FIT.predict(WSD)[:3])
    half = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
    assert FIT.predict(CURVE).reasons == ()
    assert fit_losses(LossRun(half, 2e-3, STEPS, RUN.losses)).predict(half).reasons == ()


def test_copies_forecast_the_same() -> None:
    assert fit_losses([RUN]).predict(WSD) == FIT.predict(WSD)
    for fit in (copy.copy(FIT), copy.deepcopy(FIT), pickle.loads(pickle.dumps(FIT))):
        assert fit.predict(WSD) == FIT.predict(WSD)
        assert not fit.runs[0].losses.flags.writeable


NO_STAGE = "from runs without a stage at constant learning rate, longer ones came out up to 2 % worse"


def test_lengths_and_other_peaks_give_reasons() -> None:
    assert FIT.predict(PlateauCurve(3000)).reasons == (
        "it has 3 times as many steps as the longest run",
        NO_WARMUP,
        NO_STAGE,
    )
    (reason,) = FIT.predict(CURVE, 1.5e-3).reasons
    assert reason == "its peak is 1.5 times that of the nearest run"
    reason = "it has 0.299 times as many steps as the longest run: curves this short came out too high"
    assert reason in FIT.predict(PlateauCurve(299)).reasons
    assert reason not in FIT.predict(PlateauCurve(300)).reasons
    assert FIT.predict(PlateauCurve(4000)).loss < FIT.predict(PlateauCurve(2000)).loss


NO_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
LONG_WARMUP = "no run had so long a warmup: the loss may be lower by tenths of a nat"


def zero_terms(by_start: float = 0.0, by_run: float = 0.0) -> ForecastTerms:
    return ForecastTerms(*map(np.array, (2.0, 0.0, 0.0, 0.0, by_start, [0.0, by_run])))


def logged_every(interval: int, curve: PlateauCurve) -> LossRun:
    """Return a run as a log of its learning rates gives it."""
    steps = range(0 if curve.warmup_steps else interval, curve.total_steps + 1, interval)
    return LossRun.read([{"step": step, "loss": 3.0, "lr": curve(step)} for step in steps])


@pytest.mark.parametrize("interval", [None, 1, 40])
@pytest.mark.parametrize(
    ("runs", "total", "warmups", "reason"),
    [
        ([(1000, 90)], 1000, [0, 12], NO_WARMUP),
        ([(1000, 90), (2000, 200)], 2000, [12], NO_WARMUP),
        ([(1000, 90), (2000, 200)], 2000, [40], None),
        ([(1000, 90)], 1000, [60, 90, 240], None),
        ([(1000, 90)], 300, [27, 90], None),  # the same percentage, or number of steps
        ([(1000, 90)], 4000, [90, 360], None),
        ([(1000, 90)], 1000, [400], LONG_WARMUP),
        ([(1000, 0)], 1000, [400], LONG_WARMUP),
        ([(1000, 0)], 1000, [0], None),
        ([(1000, 0)], 4000, [0], None),
        ([(1000, 0), (1000, 90)], 1000, [0, 90], None),
    ],
)
def test_different_warmups_give_a_reason(runs, total, warmups, reason, interval) -> None:
    """Also those of learning rates from a log, of which only the logged ones are known."""
    curves = [PlateauCurve(run_total, warmup_steps=warmup) for run_total, warmup in runs]
    if interval is None:
        loss_runs = [LossRun(curve, 1.0, [curve.total_steps], [3.0]) for curve in curves]
    else:
        loss_runs = [logged_every(interval, curve) for curve in curves]
    for warmup in warmups:
        curve = PlateauCurve(total, warmup_steps=warmup)
        reasons = [text for text in list_reasons(curve, 1.0, zero_terms(), loss_runs) if "warmup" in text]
        assert reasons == [reason] * (reason is not None)


@pytest.mark.parametrize(
    ("curve", "other"),
    [
        (StagedCurve([(1000,)], start=1.0), PlateauCurve(1000)),
        (StagedCurve([(0, 1.0), (1000, 0.0)]), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=2), PlateauCurve(1000)),
        (PlateauCurve(1000, warmup_steps=90, warmup_shape="cosine"), CURVE),
        (CURVE.cooldown(500, 100), CURVE),
        (StagedCurve([(50, 1.0), (450, 0.0), (50, 1.0), (450, 0.0)]), CURVE),  # restarts
    ],
)
def test_equal_warmups_give_no_reason(curve, other) -> None:
    for one, another in ((curve, other), (other, curve)):
        run = LossRun(one, 1.0, [one.total_steps], [3.0])
        assert not any("warmup" in text for text in list_reasons(another, 1.0, zero_terms(), [run]))


def logged_cosine(stage: int) -> StagedCurve:
    """Return a cosine as a log of learning rates gives it, with a stage at 0.6 of the peak."""
    lrs = np.sort([*np.cos(np.linspace(0, 1.5, 100)), 0.6])[::-1].tolist()
    lrs.insert(lrs.index(0.6), 0.6)
    return StagedCurve([(stage if (lr, to) == (0.6, 0.6) else 9, to) for lr, to in itertools.pairwise(lrs)])


@pytest.mark.parametrize(
    ("run_curve", "has_stage"),
    [
        (CURVE, False),
        (WSD, True),
        (PlateauCurve(1000, plateaus=[(20, 9.8)]), False),
        (PlateauCurve(1000, plateaus=[(20, 10)]), True),
        (PlateauCurve(1000, plateaus=[(70, 10)]), False),  # below half the peak
        (logged_cosine(90), False),
        (logged_cosine(110), True),
    ],
)
def test_stage_lets_a_fit_forecast_longer_decays(run_curve, has_stage) -> None:
    steps = np.arange(20, run_curve.total_steps + 1, 20)
    total = int(steps[-1])
    fit = fit_losses(LossRun(run_curve, 1e-3, steps, losses_of(run_curve, steps)))
    for curve, needs_stage in (
        (PlateauCurve(int(1.3 * total)), True),
        (StagedCurve([(50, 1.0), (total,), (50, 0.45)]), True),
        (StagedCurve([(50, 1.0), (total,), (50, 0.55)]), False),
        (PlateauCurve(int(1.05 * total)), False),
    ):
        assert (NO_STAGE in fit.predict(curve).reasons) == (needs_stage and not has_stage)


@pytest.mark.parametrize("sign", [-1, 1])
def test_reasons_name_fits_that_contradict_each_other(sign) -> None:
    def reasons_of(by_start: float, by_runs: float) -> tuple[str, ...]:
        return list_reasons(CURVE, 1e-3, zero_terms(sign * by_start, sign * by_runs), [RUN])

    assert reasons_of(0.00999, 0.01199) == ()
    assert reasons_of(0.0101, 0) == ("it changes by 0.01 nats if the first fifth is left out",)
    assert reasons_of(0, 0.0121) == ("each run alone forecasts something else",)


def test_losses_keep_the_shape_of_steps() -> None:
    steps = np.arange(60, 1000, 47).reshape(4, 5)
    actual = FIT.losses(CURVE, steps)
    assert actual.shape == (4, 5)
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual.ravel(), FIT.losses(CURVE, steps.ravel()))
    assert FIT.losses(CURVE, 1000).shape == ()
    for empty in ([], range(0), np.zeros((2, 0)), np.array([], object)):
        values = FIT.losses(CURVE, empty)
        assert (values.shape, values.dtype) == (np.shape(empty), np.float64)
    assert FIT.losses(PlateauCurve(110, warmup_steps=10), [1]) == np.inf


def test_longest_run_and_curve() -> None:
    total = 2**31 - 1
    curve = PlateauCurve(total, warmup_steps=10**6)
    steps = np.linspace(2**27, total, 30).astype(int)
    fit = fit_losses(LossRun(curve, 1e-3, steps, losses_of(curve, steps)))
    assert fit.predict(curve).loss == pytest.approx(losses_of(curve, steps, 0.0)[-1], rel=1e-3)


def test_horizon_counts_from_the_end_of_a_whole_run() -> None:
    """A run of 1000 steps that is read every 30 has its last reading at step 990."""
    steps = np.arange(120, 1000, 30)
    fit = fit_losses(LossRun(CURVE, 1e-3, steps, losses_of(CURVE, steps)))
    assert fit.predict(PlateauCurve(4000)).loss > 0
    with pytest.raises(ValueError, match="4 times the 1000 steps"):
        fit.predict(PlateauCurve(4001))


def test_only_equal_curves_are_the_same() -> None:
    """Although a law does not see zeros at the end."""
    curve = PlateauCurve(4000, warmup_steps=500, plateaus=[(0, 60)], decay_shape="linear")
    begin = curve.rows[-2].begin
    staged = [(500, 1.0), (begin - 500,)]
    twin = StagedCurve([*staged, (4000 - begin, 0.0, "linear")])
    steps = np.arange(600, 4001, 100)
    fit = fit_losses(LossRun(curve, 1e-3, steps, losses_of(curve, steps)))
    zeros = StagedCurve([*staged, (4000 - begin, 0.0, "linear"), (600,)])
    other = StagedCurve([*staged, (4000 - begin, 0.0, "cosine")])
    comparison = fit.compare({"": curve, "twin": twin, "zeros": zeros, "other": other})
    _, same, *different = comparison.differences
    assert same == (0, 0, 0)
    assert all(low < difference < high for difference, low, high in different)


def test_comparison_prints_a_table() -> None:
    later = PlateauCurve(1000, warmup_steps=51)
    twin = StagedCurve([(50, 1.0), (950, 0.0, "cosine")])  # described differently
    curves = {"run": CURVE, "twin": twin, "later": later, "longer": PlateauCurve(3000)}
    comparison = FIT.compare(curves)
    assert comparison.differences[:2] == ((0, 0, 0), (0, 0, 0))
    lines = str(comparison).splitlines()
    assert lines[0].split() == ["loss", "interval", "difference", "interval"]
    assert lines[1].startswith("run ")
    assert lines[2].endswith("the same curve")
    assert lines[3].endswith("not distinguishable")
    assert lines[4].startswith("longer")
    assert "not distinguishable" not in lines[4]
    assert lines[5] == ""
    assert max(map(len, lines)) <= 90
    assert "longer: it has 3 times as many steps" in " ".join(lines)


def test_notebook_shows_the_same_table() -> None:
    comparison = FIT.compare({"a < b": CURVE, "c": WSD})
    root = ElementTree.fromstring(comparison._repr_html_())
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert [row[0] for row in rows] == ["", "a < b", "c"]
    assert rows[2][1] == f"{comparison.forecasts[1].loss:.3f}"
    assert hash(comparison) == hash(FIT.compare({"a < b": CURVE, "c": WSD}))


@pytest.mark.parametrize("drawn", [None, CURVE, [CURVE, WSD], {"mine": CURVE}])
def test_plot_shows_losses_and_forecasts(drawn) -> None:
    ax = Figure().subplots()
    assert FIT.plot(drawn, ax=ax) is ax
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["logged losses", "fitted law"]
    count = 0 if drawn is None else len(drawn) if isinstance(drawn, list | dict) else 1
    assert len(ax.collections) == len(labels) - 2 == count
    if count:
        expected = FIT.predict(CURVE)
        assert ax.lines[2].get_ydata()[-1] == pytest.approx(expected.loss)
        assert ax.collections[0].get_paths()[0].vertices.min(axis=0)[1] <= expected.low
    assert isinstance(drawn, dict) == (labels[2:] == ["mine"])


def test_runs_of_several_peaks_are_rejected() -> None:
    """The peak is the largest learning rate, also if the curve does not reach 1."""
    half = StagedCurve([(50, 0.5), (950, 0.0, "cosine")])
    runs = [LossRun(half, 2e-3 * (1 - 9e-7), STEPS, 1.001 * RUN.losses), RUN]
    for fit in (fit_losses(runs), fit_losses(runs[::-1])):
        assert fit.predict(half, 2e-3).reasons == fit.predict(CURVE, 1e-3).reasons == ()
        with pytest.raises(ValueError, match=r"several peak_value, 0\.001, 0\.002: say which with"):
            fit.predict(CURVE)
    for peak in (1.00001e-3, 2e-3):
        with pytest.raises(ValueError, match=r"several peaks, 0\.001, 0\.00.*: fit .* best_peak\("):
            fit_losses([LossRun(CURVE, peak, STEPS, RUN.losses), RUN])


@pytest.mark.parametrize(
    ("curve", "peak", "error", "message"),
    [
        (PlateauCurve(4001), None, ValueError, "at most 4 times the 1000 steps of the longest run: log a"),
        (CURVE, 1.51e-3, ValueError, r"0\.00151, is more than a factor of 1\.5 from that of the runs"),
        (PlateauCurve(100), None, ValueError, "this curve has 10 % of the run's steps: are they counted in"),
        (PlateauCurve(4), None, ValueError, r"has 0\.4 % of the run's steps: .* in samples or tokens\?"),
        (CURVE, 0.66e-3, ValueError, r"more than a factor of 1\.5"),
        (CURVE, -1.0, ValueError, r"peak_value = -1\.0 must be positive"),
        (CURVE, "high", TypeError, "peak_value = 'high' must be a number"),
        (ZERO, None, ValueError, "has no positive learning rate"),
        (lambda step: 1.0, None, TypeError, "curve"),
    ],
)  # fmt: skip
def test_forecasts_out_of_range_are_rejected(curve, peak, error, message) -> None:
    for call in (
        lambda: FIT.predict(curve, peak),
        lambda: FIT.losses(curve, [5], peak),
        lambda: FIT.compare({"a": curve}, peak),
        lambda: FIT.plot(curve, peak_value=peak, ax=SimpleNamespace()),
    ):
        with pytest.raises(error, match=message):
            call()
    FIT.predict(PlateauCurve(4000), 1.5e-3)
    FIT.predict(PlateauCurve(101))


@pytest.mark.parametrize(
    ("call", "arguments", "error", "message"),
    [
        (FIT.losses, (CURVE, [0]), ValueError, r"steps = \[0\] must lie in 1 … total_steps = 1000"),
        (FIT.losses, (CURVE, 1001), ValueError, "must lie in 1"),
        (FIT.losses, (CURVE, 1.5), TypeError, r"steps = 1\.5 must be integers"),
        (FIT.compare, ([CURVE],), TypeError, "curves must be a mapping"),
        (FIT.compare, ({},), ValueError, "there is no curve"),
    ],
)
def test_wrong_arguments_are_rejected(call, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        call(*arguments)
