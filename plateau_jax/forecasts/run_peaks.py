"""The peaks of runs, and which of them are one."""

import math
from collections.abc import Sequence
from itertools import combinations

from plateau_jax.forecasts.loss_run import LossRun

_ROUNDED = 1e-6
"""Learning rates are rounded to float32."""

_LOGGED = 0.05
"""The learning rates of a log may miss the peak."""


def is_one_peak(peak: float, other: float, *runs: LossRun) -> bool:
    """Return True if two peaks are one; `runs` are those that they were taken from."""
    is_logged = any("lr" in run._columns for run in runs)
    return math.isclose(peak, other, rel_tol=_LOGGED if is_logged else _ROUNDED)


def indices_by_peak(runs: Sequence[LossRun]) -> dict[float, list[int]]:
    """Return the indices of the runs of each peak, the largest of theirs; peaks ascend."""
    peaks = [run._largest_learning_rate() for run in runs]
    groups: dict[float, list[int]] = {}
    for index in sorted(range(len(runs)), key=lambda index: -peaks[index]):
        for group in groups.values():
            if all(is_one_peak(peaks[index], peaks[other], runs[index], runs[other]) for other in group):
                group.append(index)
                break
        else:
            groups[peaks[index]] = [index]
    return {peak: sorted(groups[peak]) for peak in sorted(groups)}


def peak_value_of(runs: Sequence[LossRun]) -> float:
    """Return the `peak_value` of runs of one peak; their curves may differ in the largest multiplier."""
    for run, other in combinations(runs, 2):
        if not is_one_peak(run.peak_value, other.peak_value, run, other):
            listed = ", ".join(f"{peak:g}" for peak in sorted({run.peak_value for run in runs}))
            raise ValueError(f"the runs have several peak_value, {listed}: say which with peak_value=")
    return max(run.peak_value for run in runs)


def octaves_to_runs(peak: float, runs: Sequence[LossRun]) -> float:
    """Return log₂ of a peak over that of the nearest run."""
    return min((math.log2(peak / run._largest_learning_rate()) for run in runs), key=abs)
