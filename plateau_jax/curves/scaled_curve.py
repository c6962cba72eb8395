"""`ScaledCurve`: a curve that follows a schedule of batch sizes."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, final

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.numerics import Level, as_level, nearest_power
from plateau_jax.table.exact_segments import ExactSegment, with_stops

_HIGHEST = Level("1.000000000000001")
"""The product of two rounded decimals may be a little above 1: 0.7071067811865476 ·
1.4142135623730951 is 1 + 1.4·10⁻¹⁶."""


@final
@dataclass(frozen=True, repr=False)
class ScaledCurve(Curve, kind="scaled"):
    """The result of `BatchPlan.scale`."""

    curve: Curve
    pairs: tuple[tuple[int, int], ...]
    unit: int | None
    _: KW_ONLY
    reference: int
    exponent: float = 0.5

    def __post_init__(self) -> None:
        curve = check_curve("curve", self.curve)
        pairs = check_pairs(self.pairs)
        unit = checks.count("unit", self.unit, 1)
        if curve.unit is not None and unit != curve.unit:
            expected = f"be {curve.unit}, the unit of the curve, which follows a batch plan"
            raise ValueError(checks.must("unit", unit, expected))
        reference = checks.count("reference", self.reference, 1)
        exponent = checks.number("exponent", self.exponent)
        if not 0 < exponent <= 2:
            raise ValueError(checks.must("exponent", exponent, "lie in (0, 2]"))
        for index, (threshold, _) in enumerate(pairs):
            if threshold % unit:
                path = "pairs", index, "threshold"
                raise ValueError(checks.must(path, threshold, f"be a multiple of unit = {unit}"))
            # Past its end a curve has one level, which a later batch size could not scale.
            end = curve.total_steps * unit
            if threshold > end and curve._exact_segments[-1].start > 0:
                limit = f"be at most {end}, the end of the curve, which does not end at 0"
                raise ValueError(checks.must(("pairs", index, "threshold"), threshold, limit))

        begins = [threshold // unit for threshold, _ in pairs]
        power = Fraction(as_level(exponent))
        factors = [nearest_power(Fraction(batch, reference), power) for _, batch in pairs]
        segments = _scaled_segments(curve, begins, factors)
        if max(factors) > 1:
            _check_levels(segments, reference)

        vars(self).update(curve=curve, pairs=pairs, reference=reference, exponent=exponent)
        self._set_segments(segments, unit, [curve])

    def __repr__(self) -> str:
        options = f"reference={self.reference}, exponent={self.exponent!r}"
        return f"BatchPlan({self.pairs!r}).scale({self.curve!r}, {self.unit}, {options})"


def check_pairs(pairs: Any) -> tuple[tuple[int, int], ...]:
    """Return the pairs (threshold, batch) of a schedule of batch sizes."""
    checked: list[tuple[int, int]] = []
    for path, threshold, batch in checks.pairs("pairs", pairs, "(threshold, batch)"):
        threshold = checks.count((*path, "threshold"), threshold, 0)
        batch = checks.count((*path, "batch"), batch, 1)
        checked.append((threshold, batch))

    thresholds = [threshold for threshold, _ in checked]
    is_rising = all(before < after for before, after in pairwise(thresholds))
    if thresholds[:1] != [0] or not is_rising:
        rising = "begin with a pair (0, batch), and have rising thresholds"
        raise ValueError(checks.must("pairs", pairs, rising))
    return tuple(checked)


def _scaled_segments(
    curve: Curve, begins: Sequence[int], factors: Sequence[float]
) -> list[ExactSegment]:
    """Return the segments of a curve, cut where the batch size changes, each scaled for its size.

    Args:
        curve: The curve.
        begins: The first step of each batch size.
        factors: The factor of each batch size.
    """
    scales = [as_level(factor) for factor in factors]
    segments: list[ExactSegment] = []
    for segment, after in with_stops(curve._exact_segments):
        if after is None:
            # Past the end, the curve stays at one level, scaled for the last batch size.
            segments.append(segment.shifted(0, scales[-1]))
            break
        cuts = begins[bisect_right(begins, segment.begin) : bisect_left(begins, after)]
        for begin in (segment.begin, *cuts):
            index = bisect_right(begins, begin) - 1
            segments.append(segment.from_step(begin).shifted(0, scales[index]))
    return segments


def _check_levels(segments: Sequence[ExactSegment], reference: int) -> None:
    for segment, after in with_stops(segments):
        # A segment is monotone, so it is highest at its first or at its last step.
        step = segment.begin
        if after is not None and segment.end > segment.start:
            step = after - 1
        level = segment.at(step)
        if level > _HIGHEST:
            # 16 digits, because a level may lie only a little above 1.
            limit = f"keep every multiplier at most 1; at step {step} it is {float(level):.16g}"
            advice = "use a larger reference, and multiply the peak by (new / old)**exponent"
            raise ValueError(checks.must("reference", reference, f"{limit}: {advice}"))
