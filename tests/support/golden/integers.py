"""The integers behind the learning rates, in units of 2⁻⁶², of which digests are recorded once.

A float32 near 1 stands for 2³⁸ of these integers. So a change of arithmetic by a few units changes
no float32 of any recorded curve, only one in billions elsewhere. A digest shows every unit.

What is recorded never changes. Add another curve, or another file of long segments, instead.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from proofs.shapes.specs import SPECS
from support.golden.curves import CURVES, DESCRIPTIONS

from plateau_jax import BatchPlan, Curve, StagedCurve
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.numerics.arithmetic import NUMPY
from plateau_jax.shapes.known_shapes import parse_shape
from plateau_jax.shapes.shape import Interpolated
from plateau_jax.table.encoding import decode_table
from plateau_jax.table.fixed_point import fixed_values

_LENGTHS = 1_000, 2**20, 2**31 - 1

_LEVELS: dict[str, list[tuple[float, float]]] = {
    "distant": [(1.0, 0.1), (0.7, 0.0003)],
    # Between some of these t^-P is a parabola, between others it is not.
    "nearly equal": [(0.75, 0.75 - 2.0**-bits) for bits in (18, 20, 21, 22, 23, 24, 26, 40)],
    # Without an integer between them, and with one.
    "equal": [(1.0000000000000002e-5, 1e-5), (2.0**-17, 7.629394531249999e-6)],
}
"""Pairs of levels, higher and lower, by how close they are in 62 bits."""

SHAPES_OF_FILES = {spec.file_name: (*spec.samples, *spec.other_names) for spec in SPECS.values()}
"""The shapes of the long segments in a file; a shape with several names is there several times."""

PARTS: dict[str, Curve] = {
    # The last shift of Heron's step drops bits of h = 1/(2√y). One more of them changes one integer
    # in about three million, among them that of step 781,503,203.
    "root_part": StagedCurve([(1_389_339_028, 0.0, "1-sqrt")], start=1).part(0, 781_503_207),
}
"""Curves that end next to a step where the rounding of the last bit shows."""

_OF_CURVE = "_integers"

INTEGERS = (*(name + _OF_CURVE for name in (*CURVES, *DESCRIPTIONS)), *SHAPES_OF_FILES, *PARTS)
"""The names of the files: one for each recorded curve, those of long segments, and parts."""

Curves = dict[str, list[Curve]]


@suppress_warnings()  # levels of 1e-5 look like learning rates
def describe_integers(name: str) -> dict[str, str]:
    """Return the content of a file: the digest of each group of curves."""
    digests: dict[str, str] = {}
    for label, curves in _curves_of_file(name).items():
        digest = hashlib.sha256()
        for curve in curves:
            digest.update(_integers(curve).tobytes())
        digests[label] = digest.hexdigest()
    return digests


def _curves_of_file(name: str) -> Curves:
    curve_name = name.removesuffix(_OF_CURVE)
    if name in SHAPES_OF_FILES:
        groups: Curves = {}
        for shape in SHAPES_OF_FILES[name]:
            groups.update(_long_segments(shape))
        return groups
    if name in PARTS:
        return {"some steps": [PARTS[name]]}
    if curve_name in DESCRIPTIONS:
        return {"every step": [Curve.from_dict(DESCRIPTIONS[curve_name])]}
    return {"every step": [CURVES[curve_name]]}


def _long_segments(shape: str) -> Curves:
    """Return rising and falling segments of every length, by what is special about their levels."""
    groups: Curves = {}
    for label, pairs in _LEVELS.items():
        segments: list[Curve] = []
        for length in _LENGTHS:
            for high, low in pairs:
                segments.append(StagedCurve([(length, low, shape)], start=high))
                segments.append(StagedCurve([(length, high, shape)], start=low))
        groups[f"{shape} between {label} levels"] = segments
    groups[f"{shape} towards a level above 1"] = [_above_one(shape, length) for length in _LENGTHS]
    lowest = _lowest_level(shape)
    groups[f"{shape} from 1 to {lowest}"] = [
        StagedCurve([(length, lowest, shape)], start=1) for length in _LENGTHS
    ]
    return groups


def _lowest_level(shape: str) -> float:
    """Return 0, or about the lowest level that a shape with 2^(-E) can join to 1."""
    known_shape = parse_shape(shape)
    if isinstance(known_shape, Interpolated):
        return 0.0
    return 2.0 ** -min(int(61 * known_shape.power), 61)


def _first_step(length: int, is_reached: Callable[[int], bool]) -> int:
    """Return the first step above 0 from which on something is true, at most the length."""
    return 1 + bisect_left(range(1, length), True, key=is_reached)


def _above_one(shape: str, length: int) -> Curve:
    """Return a curve that a batch plan scales to a level above 1, which no step reaches."""
    rising = StagedCurve([(length, 1.0, shape)], start=0.001)
    falling = StagedCurve([(length, 0.001, shape)], start=1.0)

    def is_high(step: int) -> bool:
        return rising(step) >= 0.3

    def is_low(step: int) -> bool:
        return falling(step) < 0.3

    if is_high(1):
        kept = falling.part(_first_step(length, is_low), length)
    else:
        kept = rising.part(0, _first_step(length, is_high) - 1)
    return BatchPlan([(0, 3)]).scale(kept, 1, reference=1, exponent=1)


def _integers(curve: Curve) -> NDArray[np.int64]:
    """Return the integers at some steps, with 0 where the table has the float32 itself."""
    steps = _steps_of(curve)
    table = decode_table(NUMPY, curve.table)
    index = np.searchsorted(table.begin, steps, side="right") - 1
    is_flat = table.segments.length[index] == 0
    is_start = table.segments.phase_begin[index] == steps
    return np.where(is_flat | is_start, 0, fixed_values(table, steps)).astype("<i8")


def _steps_of(curve: Curve) -> NDArray[np.int32]:
    """Return all steps of a short curve; of a long one the borders, and others in between."""
    total = curve.total_steps
    if total <= 4_096:
        return np.arange(total + 1, dtype=np.int32)
    borders = [0, total // 2, total]
    for halvings in range(total.bit_length() + 1):
        for border in (Fraction(1), Fraction(5, 7)):
            distance = int(total * border / 2**halvings)
            borders += [distance, total - distance]
    steps: set[int] = set()
    for border in borders:
        steps.update(range(border - 8, border + 9))
    # The multiples of the golden ratio, modulo 1, lie evenly in [0, 1).
    for index in range(2_000):
        steps.add((index * 2_654_435_769 % 2**32) * total >> 32)
    return np.array(sorted(step for step in steps if 0 <= step <= total), np.int32)
