"""The law of the loss, its fit, its forecasts and their intervals, written out from their formulas.

The formulas and their names are those of `docs/forecast.md`, "When to trust it" (S, N, S0, p0), and
of the docstring of `LossFit.predict` (sd, a, q, c, d, k).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plateau_jax import Curve, LossRun

optimize: Any = import_module("scipy.optimize")  # which has no types

Floats = NDArray[np.float64]


# The sums over the learning rates s of the updates before a logged loss.


def lrs_of(curve: Curve, peak: float) -> Floats:
    """Return the learning rate of each update."""
    return peak * np.asarray(curve(np.arange(curve.total_steps)), float)


def S(lrs: Floats) -> float:
    """S = Σ s^0.9."""
    s = lrs[lrs > 0]
    return float(np.sum(s**0.9))


def N(lrs: Floats) -> float:
    """N = Σ s²/(2 Σ s) + ½ Σ_{k<t-1} s_k/(Σ_{j>k} s_j + m/10) · (Σ_{j≥k} s_j² / Σ_{j≥k} s_j)."""
    s = lrs[lrs > 0]
    if len(s) == 0:
        return 0.0
    m = s.max()
    sum_from = np.cumsum(s[::-1])[::-1]  # Σ_{j≥k} s_j, for each k
    squares_from = np.cumsum(s[::-1] ** 2)[::-1]  # Σ_{j≥k} s_j²
    sum_after = sum_from[1:]  # Σ_{j>k} s_j, for k < t-1
    mean_from = squares_from[:-1] / sum_from[:-1]
    inner = np.sum(s[:-1] / (sum_after + m / 10) * mean_from)
    return float(squares_from[0] / (2 * sum_from[0]) + inner / 2)


# The logged losses that a fit uses, in groups.


def warmup_of(lrs: Floats) -> int:
    """Return the first step after which the learning rate does not rise."""
    step = 0
    while step < len(lrs) - 1 and lrs[step + 1] > lrs[step]:
        step += 1
    return step


def falls_to_half(run: LossRun) -> bool:
    """Return True if the learning rate falls to half its peak before the last logged loss."""
    lrs = lrs_of(run.curve, run.peak_value)[: run.steps[-1]]
    after_peak = lrs[np.argmax(lrs) :]
    return bool(after_peak.min() <= lrs.max() / 2)


@dataclass(frozen=True)
class Groups:
    """The groups of all runs; S in units of S₀, N in units of p₀."""

    losses: Floats
    weights: Floats
    S: Floats
    N: Floats
    S0: float
    p0: float
    counts: list[int]
    """The number of groups of each run."""


def groups_of(runs: Sequence[LossRun], start: float) -> Groups:
    """Average the losses after the warmup and this fraction of each run, in at most 60 groups.

    The weight of a run is the square of its number of steps. S and N of a group are those of the
    updates before the mean of its steps.
    """
    squares = [int(run.steps[-1]) ** 2 for run in runs]
    losses: list[float] = []
    weights: list[float] = []
    sums: list[float] = []
    noises: list[float] = []
    counts: list[int] = []
    for run, square in zip(runs, squares, strict=True):
        lrs = lrs_of(run.curve, run.peak_value)
        last = int(run.steps[-1])
        is_used = run.steps > warmup_of(lrs) + start * last
        count = min(60, int(is_used.sum()))
        steps = [float(part.mean()) for part in np.array_split(run.steps[is_used], count)]
        losses += [float(part.mean()) for part in np.array_split(run.losses[is_used], count)]
        weights += [square / sum(squares) * weight for weight in weights_of(steps, last)]
        sums += [S(lrs[: round(t)]) for t in steps]
        noises += [N(lrs[: round(t)]) for t in steps]
        counts.append(count)
    S0 = max(sums)
    p0 = max(run.peak_value for run in runs)
    return Groups(
        losses=np.array(losses),
        weights=np.array(weights),
        S=np.array(sums) / S0,
        N=np.array(noises) / p0,
        S0=S0,
        p0=p0,
        counts=counts,
    )


def weights_of(steps: list[float], last: int) -> list[float]:
    """Weigh the groups of a run: those of the last 5 % of its steps have half of the weight."""
    late = sum(t > 0.95 * last for t in steps)
    early = len(steps) - late
    if late == 0 or early == 0:
        return [1 / len(steps)] * len(steps)
    weights: list[float] = []
    for t in steps:
        if t > 0.95 * last:
            weights.append(0.5 / late)
        else:
            weights.append(0.5 / early)
    return weights


# The law, and its fit.


@dataclass(frozen=True)
class Law:
    """loss = floor + scale·S^-alpha + noise·N^power, with S in units of S₀ and N in units of p₀."""

    floor: float
    scale: float
    alpha: float
    noise: float
    power: float

    def losses(self, S: Any, N: Any) -> Any:
        return self.floor + self.scale * S**-self.alpha + self.noise * N**self.power


def fit_at(groups: Groups, alpha: float, power: float = 0.8) -> Law:
    """Fit floor, scale and noise for one α: non-negative least squares of the relative errors."""
    # √weight · (floor · 1 + scale · S^-α + noise · N^power) / loss ≈ √weight
    columns = [np.ones_like(groups.losses), groups.S**-alpha, groups.N**power]
    roots = np.sqrt(groups.weights)
    weighted = [roots * column / groups.losses for column in columns]
    coefficients, _ = optimize.nnls(np.stack(weighted, axis=1), roots)
    floor, scale, noise = coefficients.tolist()
    return Law(floor, scale, alpha, noise, power)


def error_of(law: Law, groups: Groups) -> float:
    """Return what the fit minimizes: Σ weight · (law/loss - 1)² + (0.02·(α - 0.44))²."""
    relative = law.losses(groups.S, groups.N) / groups.losses - 1
    penalty = (0.02 * (law.alpha - 0.44)) ** 2
    return float(np.sum(groups.weights * relative**2) + penalty)


def fit_law(groups: Groups, power: float = 0.8) -> Law:
    """Fit the law, with α in [0.05, 1.5]: the best of a grid, then a search around it."""

    def error(alpha: float) -> float:
        return error_of(fit_at(groups, alpha, power), groups)

    nearest = min(np.linspace(0.05, 1.5, 30), key=error)
    bounds = max(0.05, nearest - 0.05), min(1.5, nearest + 0.05)
    best = optimize.minimize_scalar(error, bounds=bounds, options={"xatol": 1e-10})
    return fit_at(groups, float(best.x), power)


# Forecasts.


@dataclass(frozen=True)
class Terms:
    """A forecast and the terms of its interval."""

    loss: float
    a: float
    q: float
    c: float
    deltas: Floats
    """δ of each run with a decay; empty if there is one run."""
    k: float

    @property
    def d(self) -> float:
        return float(np.max(np.abs(self.deltas), initial=0.0))


class LossOracle:
    """The fit to the losses of runs after their warmup and this fraction of their steps."""

    def __init__(self, runs: Sequence[LossRun], start: float = 0.03) -> None:
        self.runs = runs
        self.groups = groups_of(runs, start)

    @cached_property
    def law(self) -> Law:
        return fit_law(self.groups)

    @cached_property
    def sd(self) -> float:
        """The weighted root mean square of the errors."""
        errors = self.law.losses(self.groups.S, self.groups.N) - self.groups.losses
        return math.sqrt(np.sum(self.groups.weights * errors**2))

    # The refits of an interval.

    @cached_property
    def low_power(self) -> Law:
        return fit_law(self.groups, 0.6)

    @cached_property
    def high_power(self) -> Law:
        return fit_law(self.groups, 1.0)

    @cached_property
    def low_alpha(self) -> Law:
        return fit_at(self.groups, self.law.alpha - 0.06)

    @cached_property
    def high_alpha(self) -> Law:
        return fit_at(self.groups, self.law.alpha + 0.06)

    @cached_property
    def without_first_fifth(self) -> "LossOracle | None":
        late = LossOracle(self.runs, 0.2)
        if min(late.groups.counts) < 8:
            return None
        return late

    @cached_property
    def of_single_runs(self) -> list["LossOracle"]:
        if len(self.runs) == 1:
            return []
        return [LossOracle([run]) for run in self.runs if falls_to_half(run)]

    def loss(self, law: Law, curve: Curve, peak: float) -> float:
        """Return the loss after the last step of a curve."""
        lrs = lrs_of(curve, peak)
        return float(law.losses(S(lrs) / self.groups.S0, N(lrs) / self.groups.p0))

    def terms(self, curve: Curve, peak: float) -> Terms:
        loss = self.loss(self.law, curve, peak)
        a = (self.loss(self.high_alpha, curve, peak) - self.loss(self.low_alpha, curve, peak)) / 2
        q = (self.loss(self.low_power, curve, peak) - self.loss(self.high_power, curve, peak)) / 2
        c = 0.0
        late = self.without_first_fifth
        if late is not None:
            c = late.loss(late.law, curve, peak) - loss
        deltas = [alone.loss(alone.law, curve, peak) - loss for alone in self.of_single_runs]
        octaves = min(abs(math.log2(peak / run.peak_value)) for run in self.runs)
        k = 0.01 * loss * octaves
        return Terms(loss, a, q, c, np.array(deltas), k)

    def forecast(self, curve: Curve, peak: float) -> tuple[float, float]:
        """Return the loss and half the width of its interval."""
        terms = self.terms(curve, peak)
        return terms.loss, self.half_width(terms, 0.003 * terms.loss)

    def difference(self, curve: Curve, first: Curve, peak: float) -> tuple[float, float]:
        """Return the loss of a curve minus that of the first, and half the interval's width."""
        terms = self.terms(curve, peak)
        of_first = self.terms(first, peak)
        changes = Terms(
            loss=terms.loss - of_first.loss,
            a=terms.a - of_first.a,
            q=terms.q - of_first.q,
            c=terms.c - of_first.c,
            deltas=terms.deltas - of_first.deltas,
            k=terms.k - of_first.k,
        )
        return changes.loss, self.half_width(changes, 0.0025 * of_first.loss)

    def half_width(self, terms: Terms, relative: float) -> float:
        """2 √(sd² + a² + q² + (1.5 c)² + d² + (0.003 loss)² + k²)."""
        squares = self.sd**2 + terms.a**2 + terms.q**2
        squares += (1.5 * terms.c) ** 2 + terms.d**2 + relative**2 + terms.k**2
        return 2 * math.sqrt(squares)
