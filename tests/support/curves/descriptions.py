"""Plain data that describe curves of every kind, for the oracle; built, and drawn by hypothesis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.curves.strategies import (
    MAX_STEP,
    SMALLEST_NORMAL,
    Words,
    magnitude,
    read_arguments,
    shape_of,
    words,
)
from support.numerics.oracle import Description, Oracle, are_equal, as_written, mp, power_of

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve
from plateau_jax.curves.staged_curve import Stage
from plateau_jax.shapes import known_shapes
from plateau_jax.validation.curve_warning import suppress_warnings

KINDS = "plateaus", "stages", "cooldown", "then", "part"
UNIT = 4
"""The unit of every scaled curve, so that any two can be combined."""
SHAPES = tuple(known_shapes.SHAPES)
"""Every shape; a formula takes a decimal for P."""


@suppress_warnings()  # drawn levels and percentages may look like mistakes, and a cooldown may begin at 0
def build(description: Description) -> Curve:
    """Build the described curve through the public interface."""
    match description:
        case {"stages": stages, "start": start}:
            # A stage may also be a tuple.
            both = [stage if index % 2 else Stage(*stage) for index, stage in enumerate(stages)]
            return StagedCurve(both, start=start)
        case {"cooldown": parent, "at": at, "steps": steps, "to": to, "shape": shape}:
            return build(parent).cooldown(at, steps, to=to, shape=shape)
        case {"curve": first, "then": other, "scale": scale}:
            return build(first).then(build(other), scale=scale)
        case {"part": parent, "start": start, "stop": stop}:
            return build(parent).part(start, stop)
        case {"scaled": parent, "pairs": pairs, "unit": unit, **rest}:
            return BatchPlan(pairs).scale(build(parent), unit, **rest)
        case _:
            return PlateauCurve(**description)


def _promised(level: Any) -> bool:
    return level == 0 or SMALLEST_NORMAL <= level <= 1


def _beside(read: Words, level: float) -> float:
    """Return any level, or one close to the given level."""
    near = level * read.one_of((1.0, 0.5, 2.0, 1.5, 15.0, 1 + 2.0**-52, 1 - 2.0**-53, 1 + 1e-7, 0.9))
    anywhere = read.ratio()
    return near if read.below(2) and _promised(near) else anywhere


def _is_defined(shape: str, start: Any, end: Any) -> bool:
    formula, power = power_of(shape)
    if shape != "exponential" and formula != "t^-":
        return True
    if not (start and end):
        return False
    return formula != "t^-" or abs(mp.log(start / end, 2)) < 62 * power


def _stages(read: Words, most_steps: int, most_stages: int) -> Description:
    count = 1 + read.below(most_stages)
    start = level = read.ratio()
    left = most_steps
    stages: list[tuple[Any, ...]] = []
    for _ in range(count):
        kind, shape = read.below(8), shape_of(read, SHAPES)
        steps, to = read.magnitude(0, left), _beside(read, level)
        if kind <= 1:
            to = None
        elif kind == 2:
            steps = 0
        elif kind == 3:
            steps = min(left, 1)
        elif kind == 4:
            to = level
        if to is not None and steps and not _is_defined(shape, as_written(level), as_written(to)):
            shape = "1-sqrt"
        written = 1 if kind == 0 else 2 if kind % 2 and shape == "linear" else 3
        stages.append((steps, to, shape)[:written])
        level = level if to is None else to
        left -= steps
    if left == most_steps:
        stages.append((1,))
    return {"stages": stages, "start": start}


def _cooldown(read: Words, parent: Description, most_steps: int) -> Description:
    oracle = Oracle(parent)
    at = min(max(_step(read(), oracle), 0), most_steps - 1)
    if not _promised(oracle(at)):
        at = 0  # A part starts here.
    level = oracle(at)
    steps, shape = read.magnitude(1, most_steps - at), shape_of(read, SHAPES)
    to = min(1.0, float(level) * read.one_of((0.0, 1.0, 0.5, 0.1, 1 - 1e-7)))
    if read.below(4) == 0:
        to = min(to, read.ratio())
    if as_written(to) > level and not are_equal(as_written(to), level):
        to = float(np.nextafter(to, 0))
    part = oracle.part_at(at)
    is_moving = not part.is_flat and at > part.begin - part.skipped
    if is_moving and are_equal(as_written(to), level):
        to = float(np.nextafter(to, 0))  # the level may differ by less than the oracle's last bit
    to = to if _promised(to) else 0.0
    if not _is_defined(shape, level, as_written(to)):
        shape = "1-sqrt"
    return {"cooldown": parent, "at": at, "steps": steps, "to": to, "shape": shape}


def _one_after_another(read: Words, first: Description, other: Description) -> Description:
    levels = [level for part in Oracle(other).parts for level in (part.start, part.end)]
    scale = read.one_of((1, 1.0, 0.5, 0.1, 1 / 3, read.ratio()))
    if scale == 0 or not all(_promised(level * as_written(scale)) for level in levels):
        scale = 1.0
    return {"curve": first, "then": other, "scale": scale}


def _part(read: Words, parent: Description) -> Description:
    oracle = Oracle(parent)
    steps = {min(max(_step(read(), oracle), 0), oracle.total_steps) for _ in range(2)}
    start, stop = sorted(steps) if len(steps) == 2 else (0, oracle.total_steps)
    return {"part": parent, "start": start, "stop": stop}


def _scaled(read: Words, parent: Description) -> Description:
    oracle = Oracle(parent)
    thresholds = {0, *(max(_step(read(), oracle), 0) for _ in range(read.below(4)))}
    pairs = [(UNIT * step, read.magnitude(1, 1000)) for step in sorted(thresholds)]
    exponent = read.one_of((0.5, 1, 2, 0.25, 0.3333333333333333, 1.7))
    batches = [batch for _, batch in pairs]
    for reference in sorted({read.magnitude(1, 1000), *batches}):
        plan = {"pairs": pairs, "unit": UNIT, "reference": reference, "exponent": exponent}
        oracle = Oracle({"scaled": parent, **plan})
        used = [level for begin, end, part in oracle.spans() for level in (part.at(begin), part.at(end - 1))]
        ends = [level for part in oracle.parts for level in (part.start, part.end)]
        # A level above 1 may not be used.
        if all(map(_promised, [*used, oracle.parts[-1].start])) and all(
            level == 0 or level >= SMALLEST_NORMAL for level in ends
        ):
            return {"scaled": parent, **plan}
    return {"scaled": parent, "pairs": [(0, 1)], "unit": UNIT, "reference": 1, "exponent": exponent}


def _description(
    read: Words,
    counts: Sequence[int],
    depth: int,
    most_steps: int = MAX_STEP,
    kind: str | None = None,
    *,
    scaled: bool = False,
) -> Description:
    kinds = KINDS if depth else KINDS[:2]
    drawn = read.one_of((*kinds, "scaled") if depth and scaled else kinds)
    kind = kind or drawn
    if kind in ("part", "scaled"):
        parent = _description(read, _FEW, depth - 1, most_steps, scaled=scaled)
        return _part(read, parent) if kind == "part" else _scaled(read, parent)
    if kind == "cooldown":
        return _cooldown(read, _description(read, _FEW, depth - 1, scaled=scaled), most_steps)
    if kind == "then" and most_steps > 1:
        # One of the two nests further.
        depths = (depth - 1, 0) if read.below(2) else (0, depth - 1)
        first = _description(read, _FEW, depths[0], read.magnitude(1, most_steps - 1), scaled=scaled)
        left = most_steps - Oracle(first).total_steps
        other = _description(read, _FEW, depths[1], left, scaled=scaled)
        return _one_after_another(read, first, other)
    if kind == "plateaus":
        return read_arguments(read, counts, most_steps)
    return _stages(read, most_steps, 6)


_FEW = range(4)


def _count(counts: Sequence[int], depth: int) -> int:
    """Return a number of words that suffices for nearly every curve; further words are zeros."""
    return max(9 + 3 * max(counts), 40 + 32 * depth)


def descriptions(
    counts: Sequence[int] = range(31), depth: int = 3, kind: str | None = None, *, scaled: bool = False
) -> st.SearchStrategy[Description]:
    """Draw curves of every kind, or of one of `KINDS`, nested up to `depth` deep.

    `counts` holds the numbers of plateaus that a `PlateauCurve` that is not nested may have. With `scaled`
    batch plans scale some of the curves, which then need a clock with the unit `UNIT`.
    """
    return words(_count(counts, depth)).map(
        lambda drawn: _description(Words(drawn), counts, depth, kind=kind, scaled=scaled)
    )


def _step(word: int, oracle: Oracle) -> int:
    """Return a step near the border of a part, inside a part, before the first or past the last."""
    rest, kind = divmod(word, 6)
    spans = oracle.spans()
    place, which = divmod(rest, len(spans))
    begin, end, _ = spans[which]
    if kind <= 1:
        step = (begin, end)[kind] + place % 7 - 3
    elif kind == 2:
        step = (begin + end) // 2
    elif kind == 3:
        step = begin + place % (end - begin)
    elif kind == 4:
        step = -magnitude(rest, 1, 2**31)
    else:
        step = oracle.total_steps + magnitude(rest, 0, MAX_STEP - oracle.total_steps)
    return min(step, MAX_STEP)


def steps_of(description: Description, drawn: list[int]) -> list[int]:
    """Return one int32 step worth testing per word."""
    oracle = Oracle(description)
    return [_step(word, oracle) for word in drawn]


def descriptions_and_steps(
    counts: Sequence[int] = range(31),
    size: int = 48,
    depth: int = 3,
    kind: str | None = None,
    *,
    scaled: bool = False,
) -> st.SearchStrategy[tuple[Description, list[int]]]:
    """Draw `descriptions`, each with `size` int32 steps worth testing."""

    def read(drawn: list[int]) -> tuple[Description, list[int]]:
        description = _description(Words(drawn[size:]), counts, depth, kind=kind, scaled=scaled)
        return description, steps_of(description, drawn[:size])

    return words(size + _count(counts, depth)).map(read)


def scaled(exponent: float = 0.5) -> Curve:
    """Return a curve of 300 steps of 8 samples; the batch grows and shrinks, also past the end."""
    plan = BatchPlan([(0, 24), (160, 14), (800, 50), (1600, 100), (2480, 70)])
    curve = PlateauCurve(300, warmup_steps=30, min_lr_ratio=0.1)
    return plan.scale(curve, 8, reference=100, exponent=exponent)


OF_UNIT_8 = [
    scaled(),
    scaled().cooldown(50, 20),
    scaled().part(10, 60),
    scaled().then(PlateauCurve(30)),
    PlateauCurve(30).then(scaled()),
    BatchPlan([(0, 1)]).scale(scaled(), 8, reference=1),
]
