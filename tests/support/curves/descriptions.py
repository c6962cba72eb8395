"""Descriptions of curves of every kind, as `Curve.from_dict` and the oracle read them."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.curve_warnings import ignore_curve_warnings
from support.curves.strategies import (
    MAX_STEP,
    SMALLEST_NORMAL,
    draw_magnitude,
    draw_plateau_curve,
    draw_ratio,
    draw_shape,
    randoms,
)
from support.numerics.oracle import Description, Oracle, are_equal, as_written, can_join

from plateau_jax import BatchPlan, Curve, PlateauCurve
from plateau_jax.shapes.known_shapes import SHAPES

UNIT = 4
"""The unit of every scaled curve, so that any two can be combined."""

CurveAndSteps = tuple[Curve, NDArray[np.int32]]


@ignore_curve_warnings()
def build(description: Description) -> Curve:
    """Build a curve without warnings, since drawn levels may look like mistakes."""
    return Curve.from_dict(description)


def _promised(level: Any) -> bool:
    return level == 0 or SMALLEST_NORMAL <= level <= 1


def _level_near(random: Random, level: float) -> float:
    """Draw any level, or one close to the given level."""
    factors = (1.0, 0.5, 2.0, 1.5, 15.0, 1 + 2.0**-52, 1 - 2.0**-53, 1 + 1e-7, 0.9)
    near = level * random.choice(factors)
    if random.random() < 0.5 and _promised(near):
        return near
    return draw_ratio(random)


def _staged(random: Random, most_steps: int) -> Description:
    count = random.randint(1, 6)
    start = level = draw_ratio(random)
    left = most_steps
    stages: list[tuple[Any, ...]] = []
    for _ in range(count):
        kind = random.randrange(8)
        shape = draw_shape(random, SHAPES)
        steps = draw_magnitude(random, 0, left)
        to = _level_near(random, level)
        if kind <= 1:
            to = None
        elif kind == 2:
            steps = 0
        elif kind == 3:
            steps = min(left, 1)
        elif kind == 4:
            to = level
        if to is not None and steps and not can_join(shape, as_written(level), as_written(to)):
            shape = "1-sqrt"
        if kind == 0:
            stages.append((steps,))
        elif kind % 2 and shape == "linear":
            stages.append((steps, to))
        else:
            stages.append((steps, to, shape))
        if to is not None:
            level = to
        left -= steps
    if left == most_steps:
        stages.append((1,))
    return {"kind": "staged", "stages": stages, "start": start}


def _cooldown(random: Random, curve: Description, most_steps: int) -> Description:
    oracle = Oracle(curve)
    at = min(max(_draw_step(random, oracle), 0), most_steps - 1)
    if not _promised(oracle(at)):
        at = 0  # A segment starts here.
    level = oracle(at)
    steps = draw_magnitude(random, 1, most_steps - at)
    shape = draw_shape(random, SHAPES)
    to = min(1.0, float(level) * random.choice((0.0, 1.0, 0.5, 0.1, 1 - 1e-7)))
    if random.randrange(4) == 0:
        to = min(to, draw_ratio(random))
    if as_written(to) > level and not are_equal(as_written(to), level):
        to = float(np.nextafter(to, 0))
    segment = oracle.segment_at(at)
    is_moving = not segment.is_flat and at > segment.begin - segment.skipped
    if is_moving and are_equal(as_written(to), level):
        to = float(np.nextafter(to, 0))  # the level may differ by less than the oracle's last bit
    if not _promised(to):
        to = 0.0
    if not can_join(shape, level, as_written(to)):
        shape = "1-sqrt"
    return {"kind": "cooldown", "curve": curve, "at": at, "steps": steps, "to": to, "shape": shape}


def _then(random: Random, curve: Description, other: Description) -> Description:
    scale = random.choice((1, 1.0, 0.5, 0.1, 1 / 3, draw_ratio(random)))
    factor = as_written(scale)
    for segment in Oracle(other).segments:
        is_promised = _promised(segment.start * factor) and _promised(segment.end * factor)
        if scale == 0 or not is_promised:
            scale = 1.0
    return {"kind": "then", "curve": curve, "other": other, "scale": scale}


def _part(random: Random, curve: Description) -> Description:
    oracle = Oracle(curve)
    first = min(max(_draw_step(random, oracle), 0), oracle.total_steps)
    second = min(max(_draw_step(random, oracle), 0), oracle.total_steps)
    start = min(first, second)
    stop = max(first, second)
    if start == stop:
        start = 0
        stop = oracle.total_steps
    return {"kind": "part", "curve": curve, "start": start, "stop": stop}


def _scaled(random: Random, curve: Description) -> Description:
    oracle = Oracle(curve)
    thresholds = {0}
    for _ in range(random.randrange(4)):
        step = max(_draw_step(random, oracle), 0)
        if oracle.segments[-1].start > 0:  # otherwise thresholds may lie past the end
            step = min(step, oracle.total_steps)
        thresholds.add(step)
    pairs = [(UNIT * step, draw_magnitude(random, 1, 1000)) for step in sorted(thresholds)]
    description: dict[str, Any] = {"kind": "scaled", "curve": curve, "pairs": pairs, "unit": UNIT}
    description["exponent"] = random.choice((0.5, 1, 2, 0.25, 0.3333333333333333, 1.7))
    for reference in sorted({draw_magnitude(random, 1, 1000), *(batch for _, batch in pairs)}):
        description["reference"] = reference
        if _keeps_promises(description):
            return description
    return {**description, "pairs": [(0, 1)], "reference": 1}


def _keeps_promises(description: Description) -> bool:
    """Return True if no level is too small, and none that is used exceeds 1."""
    oracle = Oracle(description)
    for segment in oracle.segments:
        if 0 < segment.start < SMALLEST_NORMAL or 0 < segment.end < SMALLEST_NORMAL:
            return False
    for segment, stop in oracle.with_stops():
        if not (_promised(segment.at(segment.begin)) and _promised(segment.at(stop - 1))):
            return False
    return _promised(oracle.segments[-1].start)


def _description(
    random: Random,
    counts: Sequence[int],
    depth: int,
    most_steps: int = MAX_STEP,
    kind: str | None = None,
    *,
    scaled: bool = False,
) -> Description:
    kinds = ["plateau", "staged"]
    if depth:
        kinds += ["cooldown", "then", "part"]
    if depth and scaled:
        kinds.append("scaled")
    kind = kind or random.choice(kinds)
    if kind == "part":
        return _part(random, _description(random, _FEW, depth - 1, most_steps, scaled=scaled))
    if kind == "scaled":
        return _scaled(random, _description(random, _FEW, depth - 1, most_steps, scaled=scaled))
    if kind == "cooldown":
        return _cooldown(random, _description(random, _FEW, depth - 1, scaled=scaled), most_steps)
    if kind == "then" and most_steps > 1:
        # One of the two nests further.
        depth_of_first = 0
        depth_of_other = depth - 1
        if random.randrange(2):
            depth_of_first = depth - 1
            depth_of_other = 0
        steps = draw_magnitude(random, 1, most_steps - 1)
        first = _description(random, _FEW, depth_of_first, steps, scaled=scaled)
        left = most_steps - Oracle(first).total_steps
        other = _description(random, _FEW, depth_of_other, left, scaled=scaled)
        return _then(random, first, other)
    if kind == "plateau":
        return draw_plateau_curve(random, counts, most_steps)
    return _staged(random, most_steps)


_FEW = range(4)


def descriptions(
    counts: Sequence[int] = range(31),
    depth: int = 3,
    kind: str | None = None,
    *,
    scaled: bool = False,
) -> st.SearchStrategy[Description]:
    """Draw curves of every kind, nested up to `depth` deep.

    Args:
        counts: The numbers of plateaus that a `PlateauCurve` that is not nested may have.
        depth: How deeply curves are nested.
        kind: Only this kind.
        scaled: Batch plans scale some of the curves, which then need a clock with the unit `UNIT`.
    """

    def describe(random: Random) -> Description:
        return _description(random, counts, depth, kind=kind, scaled=scaled)

    return randoms.map(describe)


def _draw_step(random: Random, oracle: Oracle) -> int:
    """Draw a step near a border, inside a segment, before the first or past the last."""
    segment, stop = random.choice(oracle.with_stops())
    kind = random.randrange(6)
    if kind == 0:
        step = segment.begin + random.randint(-3, 3)
    elif kind == 1:
        step = stop + random.randint(-3, 3)
    elif kind == 2:
        step = (segment.begin + stop) // 2
    elif kind == 3:
        step = random.randrange(segment.begin, stop)
    elif kind == 4:
        step = -draw_magnitude(random, 1, 2**31)
    else:
        total = oracle.total_steps
        step = total + draw_magnitude(random, 0, MAX_STEP - total)
    return min(step, MAX_STEP)


def draw_steps(random: Random, description: Description, size: int) -> list[int]:
    """Draw int32 steps worth testing."""
    oracle = Oracle(description)
    return [_draw_step(random, oracle) for _ in range(size)]


def descriptions_and_steps(
    counts: Sequence[int] = range(31),
    size: int = 48,
    depth: int = 3,
    kind: str | None = None,
    *,
    scaled: bool = False,
) -> st.SearchStrategy[tuple[Description, list[int]]]:
    """Draw `descriptions`, each with `size` int32 steps worth testing."""

    def describe(random: Random) -> tuple[Description, list[int]]:
        description = _description(random, counts, depth, kind=kind, scaled=scaled)
        return description, draw_steps(random, description, size)

    return randoms.map(describe)


def curves_and_steps(
    counts: Sequence[int] = range(31), size: int = 48, *, scaled: bool = False
) -> st.SearchStrategy[CurveAndSteps]:
    """Draw the curves and the steps of `descriptions_and_steps`."""

    def build_curve(drawn: tuple[Description, list[int]]) -> CurveAndSteps:
        description, steps = drawn
        return build(description), np.array(steps, np.int32)

    return descriptions_and_steps(counts, size, scaled=scaled).map(build_curve)


def scaled(exponent: float = 0.5) -> Curve:
    """Return a curve of 300 steps of 8 samples; the batch grows and shrinks, also at the end."""
    plan = BatchPlan([(0, 24), (160, 14), (800, 50), (1600, 100), (2400, 70)])
    curve = PlateauCurve(300, warmup_steps=30, min_lr_ratio=0.1)
    return plan.scale(curve, 8, reference=100, exponent=exponent)


CURVES_IN_UNITS_OF_8 = [
    scaled(),
    scaled().cooldown(50, 20),
    scaled().part(10, 60),
    scaled().then(PlateauCurve(30)),
    PlateauCurve(30).then(scaled()),
    BatchPlan([(0, 1)]).scale(scaled(), 8, reference=1),
]
