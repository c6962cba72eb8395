"""The tables of a few hundred curves, of which digests are recorded: one per shape or curve.

A change of a coefficient by a few units changes no float32 of any recorded curve, only one in
billions elsewhere. A digest shows every unit.
"""

import hashlib
from collections.abc import Iterable, Iterator

from support.curve_warnings import ignore_curve_warnings
from support.golden.curves import CURVES
from support.numerics.shapes import SAMPLES, formula_and_power

from plateau_jax import Curve, StagedCurve

_LENGTHS = 10, 1_000, 2**20, 2**31 - 1

_LEVELS = [(1.0, 0.0), (1.0, 0.1), (0.7, 0.0003), (0.75, 0.75 - 2.0**-26), (1e-5, 1e-37)]
"""Pairs of levels, higher and lower."""


def describe_tables() -> dict[str, str]:
    """Return the digest of the table of each curve, and of the tables of each shape."""
    digests = {name: _digest([curve]) for name, curve in CURVES.items()}
    with ignore_curve_warnings():  # levels of 1e-5 look like learning rates
        digests |= {f"stages {shape}": _digest(_stages(shape)) for shape in SAMPLES}
    return digests


def _stages(shape: str) -> Iterator[StagedCurve]:
    """Yield curves of one stage of this shape."""
    formula, _ = formula_and_power(shape)
    for high, low in _LEVELS:
        if low == 0 and not formula.allows_zero:
            continue
        for length in _LENGTHS:
            for start, end in ((high, low), (low, high)):
                yield StagedCurve([(length, end, shape)], start=start)


def _digest(curves: Iterable[Curve]) -> str:
    digest = hashlib.sha256()
    for curve in curves:
        for column in curve._wide_table:
            digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
