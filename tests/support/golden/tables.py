"""The tables of a few hundred curves, of which digests are recorded once.

A change of a coefficient by a few units changes no float32 of any recorded curve, only one in
billions elsewhere. A digest shows every unit.
"""

import hashlib

from support.golden.curves import CURVES, DESCRIPTIONS
from support.numerics.shapes import FORMULAS, formula_and_power

from plateau_jax import Curve, StagedCurve
from plateau_jax.arguments.curve_warning import suppress_warnings

_LENGTHS = 10, 1_000, 2**20, 2**31 - 1

_LEVELS = [(1.0, 0.0), (1.0, 0.1), (0.7, 0.0003), (0.75, 0.75 - 2.0**-26), (1e-5, 1e-37)]
"""Pairs of levels, higher and lower."""

_OF_CURVES = "tables_of_curves"
_OF_STAGES = "tables_of_"

TABLES = (_OF_CURVES, *(_OF_STAGES + name for name in FORMULAS))
"""The names of the files: one for the recorded curves, and one for each shape."""


@suppress_warnings()  # levels of 1e-5 look like learning rates
def describe_tables(name: str) -> dict[str, str]:
    """Return the content of a file: the digest of each table."""
    if name == _OF_CURVES:
        written = {key: Curve.from_dict(value) for key, value in DESCRIPTIONS.items()}
        return {key: _digest(curve) for key, curve in {**CURVES, **written}.items()}
    formula = FORMULAS[name.removeprefix(_OF_STAGES)]
    digests: dict[str, str] = {}
    for shape in formula.samples:
        for high, low in _LEVELS:
            if low == 0 and not formula_and_power(shape)[0].joins_zero:
                continue
            for length in _LENGTHS:
                for start, end in ((high, low), (low, high)):
                    curve = StagedCurve([(length, end, shape)], start=start)
                    digests[f"{shape} from {start} to {end} in {length}"] = _digest(curve)
    return digests


def _digest(curve: Curve) -> str:
    digest = hashlib.sha256()
    for column in curve._wide_table:
        digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
