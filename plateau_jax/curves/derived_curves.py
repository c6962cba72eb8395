"""Curves that are derived from other curves: cooldowns and continuations."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import final

from plateau_jax.curves.config_values import read_numbers
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.curves.serialization import MAX_DEPTH, register_kind
from plateau_jax.numerics import levels, shapes
from plateau_jax.numerics.exact import as_written, nearest_float32
from plateau_jax.numerics.exact_segments import ExactSegment, flat_segment, segment_at
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP
from plateau_jax.validation.curve_warning import warn
from plateau_jax.validation.messages import MAX_INT32, Message, Name, Wording, within


@final
@register_kind(
    "cooldown", read=partial(read_numbers, steps=("at", "steps"), numbers=("to",)), curves=["curve"]
)
@dataclass(frozen=True, repr=False)
class Cooldown(Curve):
    """The result of `Curve.cooldown`."""

    curve: Curve
    at: int
    steps: int
    _: KW_ONLY
    to: float = 0.0
    shape: str = "1-sqrt"

    def __post_init__(self) -> None:
        curve = check_curve("curve", self.curve)
        at = checks.at_least("at", self.at, 0)
        steps = checks.at_least("steps", self.steps, 1)
        if at + steps > MAX_STEP:
            subject = Wording(f"at + steps = {at + steps}", f"the last step, {at + steps},")
            raise ValueError(Message(subject, " must be at most ", MAX_INT32, at="at"))
        to = checks.ratio("to", self.to)
        shape = shapes.canonical_shape("shape", self.shape, shapes.NAMED_SHAPES, shapes.FORMULAS)
        start, end = segment_at(curve.rows, at).at(at), as_written(to)
        # The level reached may equal `to` though it is written with irrational terms. One object for both
        # ends makes the segment flat.
        if levels.are_equal(start, end):
            start = end
        elif levels.is_above(end, start):
            level = nearest_float32(levels.fixed224(start))
            raise ValueError(checks.must("to", to, f"not lie above the level at step {at}, {level}"))
        if reason := levels.why_undefined(shape, "cooldown", start, end, zero="to 0"):
            raise ValueError(Message(reason, at="shape"))
        self._freeze(
            [
                # The number of rows does not depend on `at`, so `at` may move without recompilation. The row
                # that is cut short keeps its length, and with it the bits of its values.
                *(row._replace(begin=min(row.begin, at)) for row in curve.rows[:-1]),
                curve.rows[-1]._replace(begin=min(curve.total_steps, at), kind="hold"),
                ExactSegment("cooldown", at, steps, start, end, shape),
                flat_segment("end", at + steps, 0, end),
            ],
            depth=_depth_above(curve),
            at=at,
            steps=steps,
            to=to,
            shape=shape,
        )
        if start == 0:
            where = f"the cooldown at step {at} goes from 0 to 0: the learning rate is 0 there already. "
            warn(Message(where, "Begin it at a step at which the curve is above 0", at="at"))

    def _legend_phrases(self) -> list[str]:
        cooldown = f"{self.shape} cooldown {self.at}–{self.total_steps} to {self.to:g}"
        return [*self.curve._legend_phrases(), cooldown]

    def __repr__(self) -> str:
        return f"{self.curve!r}.cooldown({self.at}, {self.steps}, to={self.to!r}, shape={self.shape!r})"


@final
@register_kind("then", read=partial(read_numbers, numbers=("scale",)), curves=["curve", "other"])
@dataclass(frozen=True, repr=False)
class Then(Curve):
    """The result of `Curve.then`."""

    curve: Curve
    other: Curve
    _: KW_ONLY
    scale: float = 1.0

    def __post_init__(self) -> None:
        curve, other = check_curve("curve", self.curve), check_curve("other", self.other)
        scale = checks.number("scale", self.scale)
        if not 0 < scale <= 1:
            raise ValueError(checks.must("scale", scale, within(0, 1, "(]")))
        first = curve.total_steps
        if first + other.total_steps > MAX_STEP:
            total = Wording((Name("total_steps"), " = "), "the number of steps, ")
            sum_of_steps = f"{first} + {other.total_steps}", Wording("", ",")
            raise ValueError(Message(total, *sum_of_steps, " must be at most ", MAX_INT32))
        rows = [*curve.rows[:-1], *(row.shifted(first, as_written(scale)) for row in other.rows)]
        self._freeze(rows, depth=_depth_above(curve, other), scale=scale)

    def _legend_phrases(self) -> list[str]:
        phrases = self.curve._legend_phrases()
        # Only what differs: a restart of the same curve would repeat every phrase.
        new = [phrase for phrase in self.other._legend_phrases() if phrase not in phrases]
        then = f"then {self.curve.total_steps}–{self.total_steps}"
        then += f" × {self.scale:g}" if self.scale != 1 else ""
        return [*phrases, f"{then}: {', '.join(new)}" if new else then]

    def __repr__(self) -> str:
        return f"{self.curve!r}.then({self.other!r}, scale={self.scale!r})"


def _depth_above(*curves: Curve) -> int:
    """Return the depth of a curve that is derived from these."""
    depth = 1 + max(curve.depth for curve in curves)
    if depth > MAX_DEPTH:
        raise ValueError(f"cooldowns and continuations are nested {depth} deep; at most {MAX_DEPTH} may be")
    return depth
