"""Spikes of the loss, which a fit leaves out, and the noise that they are measured by."""

import numpy as np
from numpy.typing import NDArray

from plateau_jax.forecasts.loss_run import LossRun
from plateau_jax.forecasts.lr_sums import steps_at_borders

_Floats = NDArray[np.float64]

_LONGEST = 2
_MARGIN = 0.01
_MARGIN_IN_NOISE = 6.0
_MOST = 0.1

_LR_RISE = 1.01
"""By which factor a learning rate rises; logged ones are rounded."""


def second_differences(losses: _Floats, lag: int = 1) -> _Floats:
    """Return l[i + lag] - 2 l[i] + l[i - lag], relative to l[i]: they have almost no trend left."""
    middle = losses[lag:-lag]
    return (losses[2 * lag :] - 2 * middle + losses[: -2 * lag]) / middle


def noise_of(second_differences: _Floats) -> float:
    """Return the standard deviation of the losses; outliers hardly change it."""
    # Second differences of independent noise have 6 times its variance.
    return 1.4826 * float(np.median(np.abs(second_differences))) / 6**0.5


def find_spikes(run: LossRun, is_used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the logged losses that spike and recover.

    One loss, or two in a row, is a spike if it exceeds the loss before it and the one after it by more than
    1 % plus six times the noise, if the one after is back within this margin of the one before, and if the
    learning rate does not rise there. The last loss is not a spike, nor is a divergence.

    Args:
        run: The run.
        is_used: Marks the logged losses that count.

    Returns:
        Marks; none if they were more than a tenth of the losses that count.
    """
    losses = run.losses
    marks = np.zeros(len(losses), np.bool_)
    if is_used.sum() < _LONGEST + 2:
        return marks
    margin = 1 + _MARGIN + _MARGIN_IN_NOISE * noise_of(second_differences(losses[is_used]))
    for length in range(1, _LONGEST + 1):
        windows = np.lib.stride_tricks.sliding_window_view(losses, length + 2)
        before, after = windows[:, 0], windows[:, -1]
        is_spike = windows[:, 1:-1].min(axis=1) > margin * np.maximum(before, after)
        begins: list[int] = (np.flatnonzero(is_spike & (after <= margin * before)) + 1).tolist()
        for begin in begins:
            marks[begin : begin + length] |= not _lr_rises(run, begin, begin + length)
    marks &= is_used
    return marks if marks.sum() <= _MOST * is_used.sum() else np.zeros_like(marks)


def _lr_rises(run: LossRun, begin: int, end: int) -> bool:
    """Return True if the learning rate rises between the second loss before `begin` and the loss at `end`."""
    first, last = int(run.steps[max(0, begin - 2)]) - 1, int(run.steps[end])
    borders = steps_at_borders(run.curve, last)
    learning_rates = run.curve(np.append(first, borders[borders > first]))
    return bool(np.any(learning_rates > _LR_RISE * np.minimum.accumulate(learning_rates)))
