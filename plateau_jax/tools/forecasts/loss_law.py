"""The law of the loss: the sums S and N over the learning rates, and the fit; see `fit_losses`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves.curve import Curve
from plateau_jax.tools.theory.step_bins import (
    bin_begins,
    bins_before,
    last_iterate_sums,
    mean_multipliers,
    sorted_unique,
)

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

_PROGRESS_POWER = 0.9
"""The power of the learning rates in S, chosen on published runs.

With 1, a cosine makes too little progress relative to a constant learning rate.
"""

_DAMPING = 0.1
"""Fraction of the largest learning rate that is added to a denominator of N.

Without it, N jumps where the learning rate drops by orders of magnitude from one step to the next:
the sum of the learning rates after that step is then almost 0.
"""

MAX_SINGLE_STEPS = 2**16
"""Up to this many steps, every step is summed.

Above, steps are summed in bins of several steps, each with a single learning rate.
"""

_NEAREST = 128
"""Number of last steps that are summed one by one even then."""

_NOISE_POWER = 0.8
"""Chosen on published runs, not derived, as are the center and the weight of α's penalty."""

_ALPHA_RANGE = 0.05, 1.5
_ALPHA_CENTER = 0.44
_ALPHA_WEIGHT = 0.02

_GRID = 30
_FINER_GRID = 9

_SETS_OF_COLUMNS = [0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2]


def schedule_sums(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Return S and N after each number of updates; `fit_losses` has the formulas.

    The result is that of the formulas up to 2¹⁶ steps, and within 10⁻⁵ of it above that. Before the
    first positive learning rate, S and N are 0.
    """
    if not steps.size:
        return np.zeros(steps.shape), np.zeros(steps.shape)
    unique = sorted_unique(steps.ravel())
    progress = peak_value**_PROGRESS_POWER * _progress(curve, unique)
    noise = peak_value * _noise(curve, unique)
    places = np.searchsorted(unique, steps)
    return progress[places], noise[places]


def _progress(curve: Curve, steps: _Steps) -> _Floats:
    last = int(steps[-1])
    singles = np.arange(min(last, MAX_SINGLE_STEPS) + 1)
    begins = bin_begins(curve)
    borders = sorted_unique(np.concatenate([singles, begins[begins < last], steps]))
    powers = np.diff(borders) * mean_multipliers(curve, borders) ** _PROGRESS_POWER
    sums = np.append(0.0, np.cumsum(powers))
    return sums[np.searchsorted(borders, steps)]


def _noise(curve: Curve, steps: _Steps) -> _Floats:
    noise: list[float] = []
    for s, n in bins_before(curve, steps.tolist(), MAX_SINGLE_STEPS, _NEAREST):
        noise.append(_noise_after(s, n))
    return np.array(noise)


def _noise_after(s: _Floats, n: _Floats) -> float:
    """Return N after bins of n steps with the learning rate s each."""
    if not len(s):
        return 0.0
    total, squares, inner = last_iterate_sums(s, n, _DAMPING * float(s.max()))
    return squares / (2 * total) + inner / 2


@dataclass(frozen=True)
class LoggedLosses:
    """Logged losses, as averaged in groups, with S and N at their steps.

    Attributes:
        progress: S at each logged loss.
        noise: N at each.
        losses: The losses.
        weights: Their weights, which add up to 1.
        runs: The index of the run of each loss.
        progress_unit: S₀, the unit of S in the law.
        noise_unit: p₀, the unit of N.
    """

    progress: _Floats
    noise: _Floats
    losses: _Floats
    weights: _Floats
    runs: NDArray[np.int64]
    progress_unit: float
    noise_unit: float


@dataclass(frozen=True)
class Law:
    """loss = floor + scale · (S/S₀)^-α + noise · (N/p₀)^power."""

    floor: float
    scale: float
    alpha: float
    noise: float
    progress_unit: float
    noise_unit: float
    power: float = _NOISE_POWER

    def losses(self, progress: _Floats, noise: _Floats) -> _Floats:
        """Return the losses at sums S and N."""
        decrease = (progress / self.progress_unit) ** -self.alpha
        return (
            self.floor
            + self.scale * decrease
            + self.noise * (noise / self.noise_unit) ** self.power
        )


def fit_law(logged: LoggedLosses, power: float = _NOISE_POWER) -> Law:
    """Minimize the weighted squared relative error plus a penalty that draws α towards its center.

        Σ weight · (law/loss - 1)² + (0.02·(α - 0.44))², α in [0.05, 1.5]; floor, scale, noise >= 0

    The error has a single minimum in practice, though no theory guarantees it: a grid finds the
    best interval, and finer grids the minimum in it.
    """

    def error(alpha: float) -> float:
        return penalized_error(logged, fit_law_at(logged, alpha, power))

    grid: _Floats = np.linspace(*_ALPHA_RANGE, _GRID)
    while grid[-1] - grid[0] > 1e-8:
        best = int(np.argmin([error(float(alpha)) for alpha in grid]))
        low = float(grid[max(0, best - 1)])
        high = float(grid[min(len(grid) - 1, best + 1)])
        grid = np.linspace(low, high, _FINER_GRID)
    return fit_law_at(logged, float(grid[_FINER_GRID // 2]), power)


def penalized_error(logged: LoggedLosses, law: Law) -> float:
    """Return what `fit_law` minimizes."""
    relative = law.losses(logged.progress, logged.noise) / logged.losses - 1
    penalty = (_ALPHA_WEIGHT * (law.alpha - _ALPHA_CENTER)) ** 2
    return float(logged.weights @ relative**2) + penalty


def fit_law_at(logged: LoggedLosses, alpha: float, power: float = _NOISE_POWER) -> Law:
    """Fit floor, scale and noise for one α: non-negative least squares of the relative errors."""
    progress = logged.progress / logged.progress_unit
    noise = logged.noise / logged.noise_unit
    columns = np.stack([np.ones_like(progress), progress**-alpha, noise**power], axis=1)
    roots = np.sqrt(logged.weights)
    matrix = (roots / logged.losses)[:, None] * columns
    coefficients = _nonnegative(matrix, roots).tolist()
    return Law(
        floor=coefficients[0],
        scale=coefficients[1],
        alpha=alpha,
        noise=coefficients[2],
        progress_unit=logged.progress_unit,
        noise_unit=logged.noise_unit,
        power=power,
    )


def _nonnegative(matrix: _Floats, target: _Floats) -> _Floats:
    """Return the three coefficients >= 0 with the least squared error.

    At the minimum some coefficients are 0, and the others are the ordinary least squares of their
    columns. So the minimum is the best of those solutions, over all sets of columns, among those
    with all coefficients >= 0.
    """
    best = np.zeros(3)
    least = float(target @ target)
    for columns in _SETS_OF_COLUMNS:
        solution = np.linalg.lstsq(matrix[:, columns], target, rcond=None)[0]
        if not np.all(solution >= 0):
            continue
        residual = matrix[:, columns] @ solution - target
        error = float(residual @ residual)
        if error < least:
            least = error
            best = np.zeros(3)
            best[columns] = solution
        if len(columns) == 3:
            break  # the unconstrained minimum
    return best
