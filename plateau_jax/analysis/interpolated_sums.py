"""The two sums at many steps of a curve: computed at some of them, interpolated between."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from plateau_jax.analysis.curve_parts import segment_begins
from plateau_jax.analysis.lr_sums import MAX_SINGLE_STEPS, ScheduleSums, scale_sums, schedule_sums
from plateau_jax.curves.curve import Curve

_Floats = NDArray[np.float64]
_Steps = NDArray[np.int64]

_MOST_DIRECT = 4096
"""Up to this many steps, the sums are computed at each."""

_NODES = 9
_TOLERANCE = 1e-7
_TOLERANCE_OF_PARTS = 2e-6  # the sums of parts of several steps are not smoother
_SMALLEST_PANEL = 32


def sums_at_many_steps(curve: Curve, peak_value: float, steps: _Steps) -> tuple[_Floats, _Floats]:
    """Return what `schedule_sums` does, up to 10⁻⁵, in a time that hardly grows with the number of steps.

    Between the borders of segments both sums are smooth. A panel of steps between two borders is interpolated
    by a polynomial, and is halved until the polynomial agrees with the sums between its nodes. Panels span
    the many segments of a log, which hardly differ from their neighbors, and are halved where they do.
    """
    if steps.size <= _MOST_DIRECT:
        return schedule_sums(curve, peak_value, steps)
    wanted, places = np.unique(steps, return_inverse=True)
    sums = ScheduleSums(curve, int(wanted[-1]))
    values = np.empty((len(wanted), 2))
    borders = () if sums.has_many_segments else segment_begins(curve)
    for first, end in _panels(borders, wanted):
        _fill(sums, wanted, values, first, end)
    return scale_sums(values[places.reshape(steps.shape)], peak_value)


def _panels(borders: Iterable[int], wanted: _Steps) -> Iterator[tuple[int, int]]:
    """Yield the indices of the steps between two borders; the sums at a border are those before it."""
    inner = np.searchsorted(wanted, [*borders, MAX_SINGLE_STEPS], side="right")
    places = np.unique([0, *inner, len(wanted)])
    yield from zip(places[:-1].tolist(), places[1:].tolist(), strict=True)


def _fill(sums: ScheduleSums, wanted: _Steps, values: _Floats, first: int, end: int) -> None:
    """Fill values[first:end], the sums at wanted[first:end]."""
    steps = wanted[first:end]
    is_exact = steps[-1] <= MAX_SINGLE_STEPS and not sums.has_many_segments
    sums_at = sums.at if is_exact else sums.near
    if len(steps) <= _SMALLEST_PANEL:
        values[first:end] = [sums_at(int(step)) for step in steps]
        return
    # Chebyshev points, and the points between them to check the polynomial.
    angles = np.linspace(0, np.pi, 2 * _NODES - 1)
    points = np.rint(steps[0] + (steps[-1] - steps[0]) * (1 - np.cos(angles)) / 2).astype(np.int64)
    nodes, checks = points[::2], points[1::2]
    at_nodes, at_checks = (np.array([sums_at(int(step)) for step in places]) for places in (nodes, checks))
    tolerance = _TOLERANCE if is_exact else _TOLERANCE_OF_PARTS
    errors = np.abs(_interpolate(nodes, at_nodes, checks) - at_checks)
    if np.all(errors <= tolerance * np.abs(at_checks)):
        values[first:end] = _interpolate(nodes, at_nodes, steps)
        return
    middle = (first + end) // 2
    _fill(sums, wanted, values, first, middle)
    _fill(sums, wanted, values, middle, end)


def _interpolate(nodes: _Steps, values: _Floats, steps: _Steps) -> _Floats:
    """Evaluate the polynomial through the nodes, by the barycentric formula."""
    differences = nodes[:, None] - nodes + np.eye(len(nodes))
    weights = 1 / np.prod(differences / np.abs(differences).max(), axis=1)
    distances = (steps[:, None] - nodes).astype(np.float64)
    is_node = distances == 0
    shares = weights / np.where(is_node, 1.0, distances)
    result = (shares @ values) / shares.sum(axis=1)[:, None]
    at_node = is_node.any(axis=1)
    result[at_node] = values[is_node.argmax(axis=1)[at_node]]
    return result
