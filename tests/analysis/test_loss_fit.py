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
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from mpmath import mp
from support.examples import examples

from plateau_jax import LossForecast, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.analysis import loss_fit
from plateau_jax.analysis.lr_sums import schedule_sums
from plateau_jax.validation.curve_warning import suppress_warnings

mpl.use("agg")


class Oracle:
    """The fit, from its definition: sums term by term, and least squares in 40 digits."""

    def __init__(self, runs: list[LossRun]) -> None:
        self.parts = []
        sums = []
        for run in runs:
            rates = self.rates(run.curve, run.peak_value)
            last = int(run.steps[-1])
            warmup = next((k for k in range(len(rates) - 1) if rates[k + 1] <= rates[k]), len(rates) - 1)
            kept = [(t, y) for t, y in zip(run.steps, run.losses, strict=True) if t > warmup + 0.03 * last]
            groups = np.array_split(np.array(kept, float), min(60, len(kept)))
            means = [group.mean(axis=0) for group in groups]
            late = sum(t > 0.95 * last for t, _ in means)
            shares = [
                (1 if late in (0, len(means)) else 0.5) / (late if t > 0.95 * last else len(means) - late)
                for t, _ in means
            ]
            weight = last**2 / sum(int(other.steps[-1]) ** 2 for other in runs)
            self.parts += [(y, share * weight) for (_, y), share in zip(means, shares, strict=True)]
            sums += [self.sums(rates[: round(t)]) for t, _ in means]
        self.longest_sum = max(s for s, _ in sums)
        self.peak = max(run.peak_value for run in runs)
        self.points = [(s / self.longest_sum, n / self.peak) for s, n in sums]
        self.runs = runs

    @staticmethod
    def rates(curve: Any, peak: float) -> Any:
        return peak * np.asarray(curve(np.arange(curve.total_steps)), float)

    @staticmethod
    def sums(rates: Any) -> tuple[float, float]:
        s = rates[rates > 0]
        after, squares = np.cumsum(s[::-1])[::-1], np.cumsum(s[::-1] ** 2)[::-1]
        noise = squares[0] / (2 * after[0])
        noise += 0.5 * sum(s[:-1] / (after[1:] + 0.1 * max(s)) * (squares[:-1] / after[:-1]))
        return sum(s**0.9), noise

    def solve(self, alpha: Any, power: float) -> tuple[Any, list[Any]]:
        """Return the least error and its three coefficients, over all sets of coefficients that are not 0."""
        rows = [[mp.mpf(1) / y, mp.mpf(s) ** -alpha / y, mp.mpf(n) ** power / y]
                for (s, n), (y, _) in zip(self.points, self.parts, strict=True)]  # fmt: skip
        shares = [share for _, share in self.parts]
        gram = [[mp.fsum(w * row[i] * row[j] for w, row in zip(shares, rows, strict=True)) for j in range(3)]
                for i in range(3)]  # fmt: skip
        right = [mp.fsum(w * row[i] for w, row in zip(shares, rows, strict=True)) for i in range(3)]
        best = None
        for size in (1, 2, 3):
            for chosen in itertools.combinations(range(3), size):
                matrix = mp.matrix([[gram[i][j] for j in chosen] for i in chosen])
                solution = mp.lu_solve(matrix, mp.matrix([right[i] for i in chosen]))
                if all(value >= 0 for value in solution):
                    error = 1 - mp.fsum(solution[k] * right[i] for k, i in enumerate(chosen))
                    if best is None or error < best[0]:
                        values = dict(zip(chosen, solution, strict=True))
                        best = error, [values.get(i, mp.mpf(0)) for i in range(3)]
        assert best is not None
        return best

    def fit(self, power: float = 0.8, alpha: Any = None) -> tuple[list[Any], Any, float]:
        """Return the coefficients, α and the power; ternary search around the best of a grid."""
        with mp.workdps(40):

            def error(alpha: Any) -> Any:
                return self.solve(alpha, power)[0] + (0.02 * (alpha - 0.44)) ** 2

            if alpha is None:
                grid = [mp.mpf(k) / 20 for k in range(1, 31)]
                center = min(grid, key=error)
                low, high = max(grid[0], center - 0.05), min(grid[-1], center + 0.05)
                while high - low > 1e-8:
                    left, right = low + (high - low) / 3, high - (high - low) / 3
                    low, high = (low, right) if error(left) < error(right) else (left, high)
                alpha = (low + high) / 2
            return self.solve(alpha, power)[1], alpha, power

    def loss(self, law: Any, rates: Any) -> float:
        (floor, scale, noise), alpha, power = law
        s, n = self.sums(rates)
        s, n = s / self.longest_sum, n / self.peak
        return float(floor + scale * mp.mpf(s) ** -alpha + noise * mp.mpf(n) ** power)

    def terms(self, curves: Any, peak: float) -> list[tuple[float, ...]]:
        """Return the loss, a, q and k of each curve."""
        law = self.fit()
        others = [self.fit(alpha=law[1] + 0.06), self.fit(alpha=law[1] - 0.06), self.fit(0.6), self.fit(1.0)]
        nearest = min(abs(np.log2(peak / run.peak_value)) for run in self.runs)
        found = []
        for curve in curves:
            rates = self.rates(curve, peak)
            loss = self.loss(law, rates)
            high, low, flat, steep = (self.loss(other, rates) for other in others)
            found.append((loss, (high - low) / 2, (flat - steep) / 2, 0.01 * loss * nearest))
        return found

    def residual(self) -> float:
        (floor, scale, noise), alpha, power = self.fit()
        return float(
            mp.sqrt(sum(
                share * (floor + scale * mp.mpf(s) ** -alpha + noise * mp.mpf(n) ** power - y) ** 2
                for (s, n), (y, share) in zip(self.points, self.parts, strict=True)
            ))
        )  # fmt: skip


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


@st.composite
def trained(draw: Any, total: int, every: int) -> LossRun:
    """Draw a run whose losses follow the law, with some independent noise."""
    curve = draw(curves(total))
    steps = np.arange(every, total + 1, every)
    seed = draw(st.integers(0, 1000))
    floor, scale = draw(st.floats(0, 4)), draw(st.floats(0.3, 2))
    # Far from 0.44 the penalty on the exponent is a misfit, and the fit may be refused.
    exponent, noise = draw(st.floats(0.3, 0.6)), draw(st.floats(0, 0.01))
    peak = draw(st.sampled_from([1e-3, 1.2e-3]))
    sums = np.array([Oracle.sums(Oracle.rates(curve, 1)[:step]) for step in steps]).T
    losses = floor + scale * (sums[0] / 200) ** -exponent + noise * sums[1] ** 0.8
    errors = 1e-3 * np.random.default_rng(seed).standard_normal(len(steps))
    return LossRun(curve, peak, steps, losses * (1 + errors))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@examples(8, deadline=None)
@given(st.data())
def test_forecasts_equal_those_of_the_oracle(data) -> None:
    runs = [data.draw(trained(600, 20))]
    if data.draw(st.booleans()):
        # Of the same law: another curve with the losses of the first fit.
        curve = data.draw(curves(900))
        steps = np.arange(10, 901, 10)
        losses = fit_losses(runs).losses(curve, steps, runs[0].peak_value)
        runs.append(LossRun(curve, runs[0].peak_value, steps, losses))
    fit, oracle = fit_losses(runs), Oracle(runs)
    named = {str(index): data.draw(curves(1200)) for index in range(2)}
    peak = 1.3 * runs[0].peak_value if data.draw(st.booleans()) else runs[0].peak_value
    comparison = fit.compare(named, peak)
    sd = oracle.residual()
    close(fit.residual_sd, sd)
    expected = oracle.terms(named.values(), peak)
    for curve, forecast, (loss, a, q, k) in zip(named.values(), comparison.forecasts, expected, strict=True):
        half = 2 * np.sqrt(sd**2 + a**2 + q**2 + (0.002 * loss) ** 2 + k**2)
        close(forecast[:3], (loss, loss - half, loss + half))
        assert forecast == fit.predict(curve, peak)
        close(fit.losses(curve, [curve.total_steps], peak), [loss])
    first, other = (np.array(terms) for terms in expected)
    half = 2 * np.hypot(sd, np.linalg.norm((other - first)[1:]))
    difference = other[0] - first[0]
    if named["0"] != named["1"]:
        close(comparison.differences[1], (difference, difference - half, difference + half))
    assert comparison.differences[0] == (0, 0, 0)


CURVE = PlateauCurve(1000, warmup_steps=50)
STEPS = np.arange(10, 1001, 10)

with suppress_warnings():
    ZERO = StagedCurve([(10,)], start=0.0)


def losses_of(curve: Any, steps: Any = STEPS, noise: float = 5e-4) -> Any:
    errors = noise * np.random.default_rng(0).standard_normal(len(steps))
    progress, noise_sums = schedule_sums(curve, 1.0, steps)
    return (2 + (progress / progress[-1]) ** -0.5 + 0.1 * noise_sums**0.8) * (1 + errors)


RUN = LossRun(CURVE, 1e-3, STEPS, losses_of(CURVE))
WSD = PlateauCurve(1500, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
OTHER = LossRun(WSD, 1e-3, np.arange(30, 1501, 30), FIT.losses(WSD, np.arange(30, 1501, 30)))


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


def test_forecasts_use_the_readings_of_the_fit(monkeypatch) -> None:
    """Grouping and summing them takes as long as the fit."""
    fit = fit_losses([RUN])
    monkeypatch.setattr(loss_fit, "group_readings", None)
    assert fit.predict(WSD) == FIT.predict(WSD)


def test_forecast_of_the_run_is_near_its_last_loss() -> None:
    loss, low, high, reasons = FIT.predict(CURVE)
    assert low < RUN.losses[-1] < high
    assert abs(loss - RUN.losses[-1]) < 0.02
    assert reasons == ()


def test_longer_curves_and_other_peaks_give_reasons() -> None:
    (reason,) = FIT.predict(PlateauCurve(3000)).reasons
    assert reason == "it has 3 times as many steps as the longest run"
    (reason,) = FIT.predict(CURVE, 1.5e-3).reasons
    assert reason == "its peak is 1.5 times that of the nearest run"
    assert FIT.predict(PlateauCurve(4000)).loss < FIT.predict(PlateauCurve(2000)).loss


def test_losses_keep_the_shape_of_steps() -> None:
    steps = np.arange(60, 1000, 47).reshape(4, 5)
    found = FIT.losses(CURVE, steps)
    assert found.shape == (4, 5)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found.ravel(), FIT.losses(CURVE, steps.ravel()))
    assert FIT.losses(CURVE, 1000).shape == ()
    for empty in ([], range(0), np.zeros((2, 0))):
        values = FIT.losses(CURVE, empty)
        assert (values.shape, values.dtype) == (np.shape(empty), np.float64)
    assert FIT.losses(PlateauCurve(100, warmup_steps=10), [1]) == np.inf


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


def test_comparison_prints_a_table() -> None:
    lines = str(FIT.compare({"run": CURVE, "twin": CURVE, "longer": PlateauCurve(3000)})).splitlines()
    assert lines[0].split() == ["loss", "interval", "difference", "interval"]
    assert lines[1].startswith("run ")
    assert lines[2].endswith("not told apart")
    assert lines[3].startswith("longer")
    assert "not told apart" not in lines[3]
    assert lines[4] == ""
    assert max(map(len, lines)) <= 90
    assert "longer: it has 3 times as many steps" in " ".join(lines)


def test_notebook_shows_the_same_table() -> None:
    comparison = FIT.compare({"a < b": CURVE, "c": WSD})
    root = ElementTree.fromstring(comparison._repr_html_())
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert [row[0] for row in rows] == ["", "a < b", "c"]
    assert rows[2][1] == f"{comparison.forecasts[1].loss:.3f}"
    assert hash(comparison) == hash(FIT.compare({"a < b": CURVE, "c": WSD}))


@pytest.mark.parametrize("drawn", [None, CURVE, [CURVE, WSD], {"mine": WSD}])
def test_plot_shows_readings_and_forecasts(drawn) -> None:
    ax = Figure().subplots()
    assert FIT.plot(drawn, ax=ax) is ax
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:2] == ["readings", "fitted law"]
    count = {None: 0}.get(drawn) if drawn is None else len(drawn) if isinstance(drawn, list | dict) else 1
    assert len(ax.collections) == len(labels) - 2 == count
    if count:
        curve = {"mine": WSD, None: CURVE}["mine" if isinstance(drawn, dict) else None]
        expected = FIT.predict(curve)
        line = ax.lines[2]
        assert line.get_ydata()[-1] == pytest.approx(expected.loss)
        assert ax.collections[0].get_paths()[0].vertices.min(axis=0)[1] <= expected.low
    if isinstance(drawn, dict):
        assert labels[2] == "mine"


def test_fit_of_several_peaks_asks_for_one() -> None:
    other = LossRun(CURVE, 1.2e-3, STEPS, FIT.losses(CURVE, STEPS, 1.2e-3))
    fit = fit_losses([RUN, other])
    with pytest.raises(ValueError, match=r"several peaks, 0\.001, 0\.0012: say which with peak_value="):
        fit.predict(CURVE)
    assert isinstance(fit.predict(CURVE, 1e-3), LossForecast)


@pytest.mark.parametrize(
    ("curve", "peak", "error", "message"),
    [
        (PlateauCurve(4001), None, ValueError, "at most 4 times the 1000 steps of the longest run: log a"),
        (CURVE, 1.51e-3, ValueError, r"0\.00151, is more than a factor of 1\.5 from those of the runs"),
        (CURVE, 0.66e-3, ValueError, r"more than a factor of 1\.5"),
        (CURVE, -1.0, ValueError, "peak_value = -1 must be positive"),
        (CURVE, "high", TypeError, "peak_value = 'high' must be a number"),
        (ZERO, None, ValueError, "has no positive learning rate"),
        (lambda step: 1.0, None, TypeError, "curve"),
    ],
)  # fmt: skip
def test_bad_forecasts_are_refused(curve, peak, error, message) -> None:
    for call in (
        lambda: FIT.predict(curve, peak),
        lambda: FIT.losses(curve, [5], peak),
        lambda: FIT.compare({"a": curve}, peak),
        lambda: FIT.plot(curve, peak_value=peak, ax=SimpleNamespace()),
    ):
        with pytest.raises(error, match=message):
            call()
    FIT.predict(PlateauCurve(4000), 1.5e-3)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"steps = \[0\] must lie in 1 … total_steps = 1000"):
        FIT.losses(CURVE, [0])
    with pytest.raises(ValueError, match="must lie in 1"):
        FIT.losses(CURVE, 1001)
    with pytest.raises(TypeError, match=r"steps = 1\.5 must be integers"):
        FIT.losses(CURVE, 1.5)
    with pytest.raises(TypeError, match="curves must be a mapping"):
        FIT.compare([CURVE])  # pyright: ignore[reportArgumentType]  (what is tested)
    with pytest.raises(ValueError, match="there is no curve"):
        FIT.compare({})
