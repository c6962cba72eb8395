"""Curves made of other curves: a cooldown off one, one after another."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from plateau_jax.checks import MAX_STEP, at_least, number, one_of, ratio
from plateau_jax.curve import MAX_DEPTH, Curve, StageShape, checked
from plateau_jax.exact import decimal, nearest_float32
from plateau_jax.levels import are_equal, bits, is_above
from plateau_jax.rows import Row, hold, row_at


@dataclass(frozen=True, repr=False)
class Cooldown(Curve):
    """What `Curve.cooldown` returns."""

    curve: Curve
    at: int
    steps: int
    _: KW_ONLY
    to: float = 0.0
    shape: StageShape = "1-sqrt"

    def __post_init__(self) -> None:
        curve = checked("curve", self.curve)
        at = at_least("at", self.at, 0)
        steps = at_least("steps", self.steps, 1)
        if at + steps > MAX_STEP:
            raise ValueError(f"at + steps = {at + steps} must be at most 2**31 - 1 = {MAX_STEP}")
        to = ratio("to", self.to)
        shape = one_of("shape", self.shape, get_args(StageShape))
        start, end = row_at(curve.rows, at).at(at), decimal(to)
        if are_equal(start, end):
            start = end
        elif is_above(end, start):
            level = nearest_float32(bits(start))
            raise ValueError(f"to = {to!r} must not lie above the level at step {at}, {level}")
        if shape == "exponential" and not end:
            raise ValueError("an exponential cooldown to 0 is not defined")
        self._freeze(
            [
                # As many rows wherever it starts. The row that it cuts keeps its length, hence its values.
                *(row._replace(begin=min(row.begin, at)) for row in curve.rows[:-1]),
                curve.rows[-1]._replace(begin=min(curve.total_steps, at), kind="hold"),
                Row("cooldown", at, steps, start, end, shape),
                hold("end", at + steps, 0, end),
            ],
            depth=_deeper(curve),
            at=at,
            steps=steps,
            to=to,
            shape=shape,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "cooldown",
            "curve": self.curve.to_dict(),
            "at": self.at,
            "steps": self.steps,
            "to": self.to,
            "shape": self.shape,
        }

    def __repr__(self) -> str:
        return f"{self.curve!r}.cooldown({self.at}, {self.steps}, to={self.to!r}, shape={self.shape!r})"


@dataclass(frozen=True, repr=False)
class Then(Curve):
    """What `Curve.then` returns."""

    curve: Curve
    other: Curve
    _: KW_ONLY
    scale: float = 1.0

    def __post_init__(self) -> None:
        curve, other = checked("curve", self.curve), checked("other", self.other)
        scale = number("scale", self.scale)
        if not 0 < scale <= 1:
            raise ValueError(f"scale = {scale!r} must lie in (0, 1]")
        first = curve.total_steps
        if first + other.total_steps > MAX_STEP:
            raise ValueError(
                f"total_steps = {first} + {other.total_steps} must be at most 2**31 - 1 = {MAX_STEP}"
            )
        rows = [*curve.rows[:-1], *(row.moved(first, decimal(scale)) for row in other.rows)]
        self._freeze(rows, depth=_deeper(curve, other), scale=scale)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "then",
            "curve": self.curve.to_dict(),
            "other": self.other.to_dict(),
            "scale": self.scale,
        }

    def __repr__(self) -> str:
        return f"{self.curve!r}.then({self.other!r}, scale={self.scale!r})"


def _deeper(*curves: Curve) -> int:
    depth = 1 + max(curve.depth for curve in curves)
    if depth > MAX_DEPTH:
        raise ValueError(f"cooldowns and continuations are nested {depth} deep; at most {MAX_DEPTH} may be")
    return depth
