"""The fit of the law of the loss, its forecasts and their intervals, from their definitions."""

import copy
import math
import operator
from functools import cache
from importlib import import_module
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from plateau_jax import LossRun

optimize: Any = import_module("scipy.optimize")  # which has no types


class Terms(NamedTuple):
    """The forecast of a curve and the terms of its interval; `deltas` has one δ per run with a decay."""

    loss: float
    a: float
    q: float
    k: float
    c: float
    deltas: Any

    @property
    def d(self) -> float:
        return float(np.max(np.abs(self.deltas), initial=0.0))


class LossOracle:
    """The fit: sums term by term, and least squares by SciPy.

    `start` is the fraction of each run, after its warmup, whose losses do not count.
    """

    def __init__(self, runs: list[LossRun], start: float = 0.03) -> None:
        self.runs = runs
        self.counts: list[int] = []
        rows: list[tuple[float, float, float, float]] = []  # of each group: its loss, weight, S and N
        for run in runs:
            lrs = self.lrs(run.curve, run.peak_value)
            last = int(run.steps[-1])
            warmup = next((k for k in range(len(lrs) - 1) if lrs[k + 1] <= lrs[k]), len(lrs) - 1)
            kept = [(t, y) for t, y in zip(run.steps, run.losses, strict=True) if t > warmup + start * last]
            groups = np.array_split(np.array(kept, float), min(60, len(kept)))
            means = [group.mean(axis=0) for group in groups]
            late = sum(t > 0.95 * last for t, _ in means)
            half = 1 if late in (0, len(means)) else 0.5
            weight = half * last**2 / sum(int(other.steps[-1]) ** 2 for other in runs)
            for t, y in means:
                count = late if t > 0.95 * last else len(means) - late
                rows.append((y, weight / count, *self.sums(lrs[: round(t)])))
            self.counts.append(len(means))
        self.losses, self.weights, sums, noise = np.array(rows).T
        self.longest_sum, self.peak = sums.max(), max(run.peak_value for run in runs)
        self.progress, self.noise = sums / self.longest_sum, noise / self.peak

    @staticmethod
    def lrs(curve: Any, peak: float) -> Any:
        return peak * np.asarray(curve(np.arange(curve.total_steps)), float)

    @staticmethod
    def sums(lrs: Any) -> tuple[float, float]:
        """Return S and N after the updates with these learning rates."""
        s = lrs[lrs > 0]
        if not len(s):
            return 0.0, 0.0
        after, squares = np.cumsum(s[::-1])[::-1], np.cumsum(s[::-1] ** 2)[::-1]
        noise = squares[0] / (2 * after[0])
        noise += 0.5 * np.sum(s[:-1] / (after[1:] + 0.1 * s.max()) * (squares[:-1] / after[:-1]))
        return np.sum(s**0.9), noise

    def solve(self, alpha: float, power: float) -> tuple[Any, float]:
        """Return the coefficients for an α, and what α minimizes."""
        columns = np.stack([np.ones_like(self.losses), self.progress**-alpha, self.noise**power], axis=1)
        roots = np.sqrt(self.weights)
        coefficients, error = optimize.nnls((roots / self.losses)[:, None] * columns, roots)
        return coefficients, error**2 + (0.02 * (alpha - 0.44)) ** 2

    @cache  # noqa: B019  (an oracle lives as long as its test)
    def fit(self, power: float = 0.8, alpha: float | None = None) -> tuple[Any, float, float]:
        """Return the coefficients, α and the power."""
        if alpha is None:

            def error(alpha: float) -> float:
                return self.solve(alpha, power)[1]

            best = min(np.linspace(0.05, 1.5, 30), key=error)
            bounds = max(0.05, best - 0.05), min(1.5, best + 0.05)
            alpha = float(optimize.minimize_scalar(error, bounds=bounds, options={"xatol": 1e-10}).x)
        return self.solve(alpha, power)[0], alpha, power

    def least_error(self, earlier: float) -> float:
        """Return what α minimizes, with S + earlier·S_last in place of S."""
        later = copy.copy(self)
        later.progress = self.progress + earlier * self.progress[-1]
        _, alpha, power = later.fit()
        return later.solve(alpha, power)[1]

    def loss(self, curve: Any, peak: float, *law: Any) -> float:
        """Return the loss after the last step, by the fit with a power and an α."""
        (floor, scale, noise), alpha, power = self.fit(*law)
        s, n = self.sums(self.lrs(curve, peak))
        s, n = s / self.longest_sum, n / self.peak
        return float(floor + scale * s**-alpha + noise * n**power)

    @cache  # noqa: B019  (the same)
    def others(self) -> tuple["LossOracle | None", list["LossOracle"]]:
        """Return the fit without the first fifths, and those of the runs alone."""
        late = LossOracle(self.runs, 0.2)
        halved = [run for run in self.runs if self.decays(run)]
        alone = [LossOracle([run]) for run in halved if len(self.runs) > 1]
        return late if min(late.counts) >= 8 else None, alone

    def decays(self, run: LossRun) -> bool:
        lrs = self.lrs(run.curve, run.peak_value)[: run.steps[-1]]
        return bool(np.any(2 * lrs[np.argmax(lrs) :] <= lrs.max()))

    def terms(self, curve: Any, peak: float) -> Terms:
        loss, alpha = self.loss(curve, peak), self.fit()[1]
        high, low, flat, steep = (
            self.loss(curve, peak, *law) for law in ((0.8, alpha + 0.06), (0.8, alpha - 0.06), (0.6,), (1.0,))
        )
        k = 0.01 * loss * min(abs(np.log2(peak / run.peak_value)) for run in self.runs)
        late, alone = self.others()
        c = late.loss(curve, peak) - loss if late else 0.0
        deltas = np.array([other.loss(curve, peak) - loss for other in alone])
        return Terms(loss, (high - low) / 2, (flat - steep) / 2, k, c, deltas)

    def forecast(self, curve: Any, peak: float) -> tuple[float, float]:
        """Return the loss and half the width of its interval."""
        loss, a, q, k, c, _ = terms = self.terms(curve, peak)
        return loss, 2 * math.hypot(self.residual(), a, q, k, 1.5 * c, terms.d, 0.003 * loss)

    def difference(self, curve: Any, first: Any, peak: float) -> tuple[float, float]:
        """Return the difference of the losses of two curves, and half the width of its interval."""
        terms, of_first = self.terms(curve, peak), self.terms(first, peak)
        loss, a, q, k, c, _ = changes = Terms(*(x - y for x, y in zip(terms, of_first, strict=True)))
        return loss, 2 * math.hypot(self.residual(), a, q, k, 1.5 * c, changes.d, 0.0025 * of_first.loss)

    def residual(self) -> float:
        (floor, scale, noise), alpha, power = self.fit()
        errors = floor + scale * self.progress**-alpha + noise * self.noise**power - self.losses
        return float(np.sqrt(self.weights @ errors**2))


def lags(losses: list[float]) -> bool:
    """Return True for losses whose second differences are those of an average that lags."""
    count = len(losses)

    def bends(k: int) -> list[float]:
        return [(losses[i + k] - 2 * losses[i] + losses[i - k]) / losses[i] for i in range(k, count - k)]

    def noise(k: int) -> float:
        return 1.4826 * median(map(abs, bends(k))) / math.sqrt(6)

    centered = [bend - median(bends(1)) for bend in bends(1)]
    r1 = sum(map(operator.mul, centered, centered[1:])) / sum(bend**2 for bend in centered)
    return r1 > 0.55 or (count >= 120 and noise(count // 60) > 2 * noise(1))
