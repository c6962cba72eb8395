"""The peaks to run next, if those that were run do not show the best one."""

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

_MIN_FACTOR, _MAX_FACTOR = 1.2, 2.5
"""The factors allowed between neighboring peaks of the parabola."""

_ROUNDING = 1e-9
_FACTOR, _WIDE_FACTOR = 2, 2.25
"""Between peaks that are advised: about the first, and not above the second, since they are rounded."""


def parabola_peaks(losses: Sequence[float]) -> slice:
    """Return the three peaks of the parabola: around the lowest loss, or at its end."""
    first = min(max(losses.index(min(losses)) - 1, 0), len(losses) - 3)
    return slice(first, first + 3)


def check_factors(peaks: Sequence[float], losses: Sequence[float]) -> None:
    """Reject neighbors in the parabola that are too far apart, or too close for their forecasts' errors."""
    lowest = losses.index(min(losses))
    pairs = pairwise(range(len(peaks))[parabola_peaks(losses)])
    for pair in sorted(pairs, key=lambda pair: lowest not in pair):
        low, high = (peaks[index] for index in pair)
        factor = high / low
        problem = (
            f"the peaks {low:g} and {high:g}, near the lowest forecast, are a factor of {factor:.3g} apart"
        )
        is_far = factor > _MAX_FACTOR * (1 + _ROUNDING)
        problem += f", {'more' if is_far else 'less'} than {_MAX_FACTOR if is_far else _MIN_FACTOR}"
        if not is_far and factor >= _MIN_FACTOR * (1 - _ROUNDING):
            continue
        if lowest not in pair:  # which is at an end, where a run is needed anyway
            raise ValueError(f"{problem}: {peak_beyond(peaks, is_low=lowest == 0)}")
        if is_far:
            raise ValueError(f"{problem}: {_log(_between(low, high))}")
        raise ValueError(f"{problem}: {_leave_out(pair, peaks, losses)}")


def first_peaks(peaks: Sequence[float]) -> str:
    """Say what to run in addition to one peak or two."""
    half, twice = peaks[0] / 2, peaks[-1] * 2
    if len(peaks) == 1:
        return _log([half, twice])
    if peaks[1] < _MIN_FACTOR * peaks[0]:
        return f"leave {peaks[0]:g} out, and {_log([peaks[1] / 2, twice])}"
    between = _between(*peaks)
    return _log(between) if between else f"log a run at {rounded(half)} or {rounded(twice)}"


def peak_beyond(peaks: Sequence[float], *, is_low: bool) -> str:
    """Say what to run below the lowest peak, or above the highest."""
    if is_low:
        return _log([peaks[0] / 2])
    # Half an octave from a good peak, a run may still diverge, but a new one at the same peak would again.
    return f"{_log([peaks[-1] * 2])}, or at {rounded(peaks[-1] * math.sqrt(2))} if that diverges"


def _leave_out(pair: Sequence[int], peaks: Sequence[float], losses: Sequence[float]) -> str:
    """Say which of two neighbors to leave out, and what to run if too few or too distant ones are left."""
    choices: list[tuple[int, str]] = []
    for index in sorted(pair, key=losses.__getitem__, reverse=True):
        kept = [(loss, peak) for i, (loss, peak) in enumerate(zip(losses, peaks, strict=True)) if i != index]
        others = [peak for _, peak in kept]
        lowest = kept.index(min(kept))
        near = others[max(lowest - 1, 0) : lowest + 2]
        missing = [peak for low, high in pairwise(near) for peak in _between(low, high)]
        advice = f"leave {peaks[index]:g} out"
        if missing:
            advice += f", and {_log(missing)}"
        elif len(others) == 2:
            advice += f", and {peak_beyond(others, is_low=lowest == 0)}"
        choices.append((len(missing), advice))
    return min(choices, key=itemgetter(0))[1]


def _between(low: float, high: float) -> list[float]:
    """Return peaks a factor of 2 apart, or nearly so, between two that are too far apart."""
    factor = high / low
    if factor <= _MAX_FACTOR * (1 + _ROUNDING):
        return []
    parts = max(2, round(math.log(factor, _FACTOR)))
    parts += factor > _WIDE_FACTOR**parts
    return [low * factor ** (part / parts) for part in range(1, parts)]


def _log(peaks: Sequence[float]) -> str:
    *most, last = map(rounded, peaks)
    return f"log runs at {', '.join(most)} and {last}" if most else f"log a run at {last}"


def rounded(peak: float) -> str:
    """Return a peak as one types it.

    >>> rounded(2 * 2e-3)
    '4e-3'
    """
    digits, _, exponent = f"{peak:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"
