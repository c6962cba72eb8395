"""The peaks of runs, and which of them are one."""

import math
from collections.abc import Sequence

from plateau_jax.forecasts.loss_run import LossRun

_ROUNDED = 1e-6
"""Learning rates are rounded to float32."""

_LOGGED = 0.05
"""The learning rates of a log may miss the peak."""


def is_one_peak(peak: float, other: float, *runs: LossRun) -> bool:
    """Return True if two peaks are one; `runs` are those that they were taken from."""
    is_logged = any(run._lrs_from is not None for run in runs)
    return math.isclose(peak, other, rel_tol=_LOGGED if is_logged else _ROUNDED)


def group_by_peak(runs: Sequence[LossRun]) -> dict[float, list[LossRun]]:
    """Return the runs of each peak, the largest of theirs; peaks ascend."""
    groups: dict[float, list[LossRun]] = {}
    for run in sorted(runs, key=lambda run: run._largest_learning_rate(), reverse=True):
        peak = run._largest_learning_rate()
        for group in groups.values():
            if all(is_one_peak(peak, other._largest_learning_rate(), run, other) for other in group):
                group.append(run)
                break
        else:
            groups[peak] = [run]
    return dict(sorted(groups.items()))


def peak_value_of(runs: Sequence[LossRun]) -> float:
    """Return the `peak_value` of runs of one peak; their curves may differ in the largest multiplier."""
    largest = max(runs, key=lambda run: run.peak_value)
    for run in runs:
        if not is_one_peak(run.peak_value, largest.peak_value, run, largest):
            listed = ", ".join(f"{peak:g}" for peak in sorted({run.peak_value for run in runs}))
            raise ValueError(f"the runs have several peak_value, {listed}: say which with peak_value=")
    return largest.peak_value


def octaves_to_runs(peak: float, runs: Sequence[LossRun]) -> float:
    """Return log₂ of a peak over that of the nearest run."""
    octaves = [math.log2(peak / run._largest_learning_rate()) for run in runs]
    return min(octaves, key=abs)
