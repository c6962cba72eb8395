"""Curves that are derived from other curves: cooldowns, continuations and parts."""

from dataclasses import KW_ONLY, dataclass
from typing import final

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP, Message
from plateau_jax.arguments.curve_warning import KEEP_FRACTION, warn, warn_of_small_end
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.numerics import as_level, nearest_float32, rounded
from plateau_jax.shapes import known_shapes
from plateau_jax.table.exact_segments import ExactSegment, cut_segments, flat_segment, segment_at

_LEAST_LR = 1e-6
"""Nobody writes a smaller learning rate; a smaller fraction is computed from other curves."""


@final
@dataclass(frozen=True, repr=False)
class Cooldown(Curve, kind="cooldown"):
    """The result of `Curve.cooldown`."""

    curve: Curve
    at: int
    steps: int
    _: KW_ONLY
    to: float = 0.0
    shape: str = "1-sqrt"

    def __post_init__(self) -> None:
        curve = check_curve("curve", self.curve)
        at = checks.count("at", self.at, 0, MAX_STEP)
        steps = checks.count("steps", self.steps, 1, MAX_STEP)
        checks.positive_int("at + steps", at + steps)
        to = checks.ratio("to", self.to)
        shape = known_shapes.canonical_shape("shape", self.shape, known_shapes.SHAPES)

        start = segment_at(curve._exact_segments, at).at(at)
        end = as_level(to)
        if rounded(start) == rounded(end):
            # The level at step `at` may equal `to` but for its last digits. The same object at both
            # ends makes the segment flat.
            start = end
        if end > start:
            reached = nearest_float32(start)
            too_high = f"not lie above the level at step {at}, {reached}"
            raise ValueError(checks.must("to", to, too_high))
        known_shapes.check_defined("shape", shape, "cooldown", start, end)

        vars(self).update(curve=curve, at=at, steps=steps, to=to, shape=shape)
        cooldown = ExactSegment("cooldown", at, steps, start, end, shape)
        before = cut_segments(curve._exact_segments, 0, at)
        segments = [*before, cooldown, flat_segment("end", at + steps, 0, end)]
        self._set_segments(segments, curve.unit, [curve])
        if start == 0:
            advice = "Begin the cooldown at a step at which the curve is above 0"
            warn(Message("at", f" = {at}: the learning rate is 0 there already. {advice}"))
        if to >= _LEAST_LR:
            warn_of_small_end(to, "to")

    def __repr__(self) -> str:
        arguments = f"{self.at}, {self.steps}, to={self.to!r}, shape={self.shape!r}"
        return f"{self.curve!r}.cooldown({arguments})"


@final
@dataclass(frozen=True, repr=False)
class Then(Curve, kind="then"):
    """The result of `Curve.then`."""

    curve: Curve
    other: Curve
    _: KW_ONLY
    scale: float = 1.0

    def __post_init__(self) -> None:
        curve = check_curve("curve", self.curve)
        other = check_curve("other", self.other)
        scale = checks.number("scale", self.scale)
        if not 0 < scale <= 1:
            raise ValueError(checks.must("scale", scale, "lie in (0, 1]"))
        first = curve.total_steps
        if first + other.total_steps > MAX_STEP:
            total = f"{first} + {other.total_steps}"
            raise ValueError(f"total_steps = {total} must be at most {MAX_STEP}")

        vars(self).update(curve=curve, other=other, scale=scale)
        factor = as_level(scale)
        segments = [
            *curve._exact_segments[:-1],
            *(segment.shifted(first, factor) for segment in other._exact_segments),
        ]
        self._set_segments(segments, _common_unit(curve, other), [curve, other])
        if _LEAST_LR <= scale < 1e-3:
            problem = f" = {scale!r} looks like a learning rate, but is a factor of the levels"
            advice = f"For a learning rate write {scale!r} / peak; {KEEP_FRACTION}"
            warn(Message("scale", f"{problem}. {advice}"))

    def __repr__(self) -> str:
        return f"{self.curve!r}.then({self.other!r}, scale={self.scale!r})"


@final
@dataclass(frozen=True, repr=False)
class Part(Curve, kind="part"):
    """The result of `Curve.part`."""

    curve: Curve
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        curve = check_curve("curve", self.curve)
        total = curve.total_steps
        stop = total
        if self.stop is not None:
            stop = checks.count("stop", self.stop, 1, total)
        start = checks.count("start", self.start, 0, stop - 1)

        vars(self).update(curve=curve, start=start, stop=stop)
        cut = cut_segments(curve._exact_segments, start, stop)
        segments = [segment._replace(begin=segment.begin - start) for segment in cut]
        level = segment_at(curve._exact_segments, stop).at(stop)
        segments.append(flat_segment("end", stop - start, 0, level))
        self._set_segments(segments, curve.unit, [curve])

    def __repr__(self) -> str:
        return f"{self.curve!r}.part({self.start}, {self.stop})"


def _common_unit(curve: Curve, other: Curve) -> int | None:
    """Return the unit of a curve that joins these two; None if neither has a unit."""
    if curve.unit is None:
        return other.unit
    if other.unit not in (None, curve.unit):
        units = f"other has unit = {other.unit}, but the curve before it has unit = {curve.unit}"
        raise ValueError(f"{units}: scale both for one clock")
    return curve.unit
