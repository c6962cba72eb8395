"""`StagedCurve`: a curve as a sequence of stages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast, final

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP, Count, Message, Path
from plateau_jax.arguments.curve_warning import suppress_warnings, warn, warn_of_small_end
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.lengths import length_in_steps, lengths_in_steps
from plateau_jax.numerics import Level, as_level
from plateau_jax.shapes import known_shapes
from plateau_jax.table.exact_segments import ExactSegment, flat_segment


class Stage(NamedTuple):
    """One stage of a `StagedCurve`: from the previous level to the level `to` in `steps` steps.

    >>> Stage(100, 0.5)
    (100, 0.5, 'linear')
    """

    steps: int
    """Number of steps; 0 for a jump to the level `to`. In the arguments of a `StagedCurve`, also a
    percentage or `"rest"`."""
    to: float | None = None
    """The level at the end, 0 to 1; None to stay at the previous level."""
    shape: str = "linear"
    """The name of a shape or its formula, as in `"1-x^2"`; `StagedCurve` has the equations."""

    def __repr__(self) -> str:
        # A plain tuple, because the `repr` of a curve is an expression of public names, and this is
        # not one.
        return repr(tuple(self))


@final
@dataclass(frozen=True)
class StagedCurve(Curve, kind="staged"):
    """A learning-rate curve made of stages, each of which begins where the previous one ended.

    `StagedCurve.wsd` builds the stages of warmup-stable-decay, `StagedCurve.through` straight lines
    through points. Levels are fractions of the peak. In a stage from level a to level b over L
    steps, the level after j steps is, with x = j/L,

        "linear"         a + (b - a)·x
        "cosine"         a + (b - a)·(1 - cos πx)/2
        "1-sqrt"         a + (b - a)·√x
        "exponential"    a^(1-x)·b^x, for levels above 0
        "1-x^P"          a + (b - a)·x^P
        "(1-x)^P"        b + (a - b)·(1-x)^P
        "t^-P"           t^(-P), t = a^(-1/P)·(1-x) + b^(-1/P)·x, for levels above 0

    Write P as a decimal: `"1-x^2"`, `"(1-x)^0.9"`, or `"t^-0.5"`, the inverse square root. P lies
    in [0.05, 20]; for `"t^-P"` it lies in [0.25, 4]. Spellings of the same shape are equivalent:
    `"1-x^0.50"` is `"1-sqrt"`.

    A stage without `to` stays at its level. A stage of 0 steps jumps to `to` at once. After the
    last stage the curve stays at the last level; before step 0 its multiplier is that of step 0.
    Every level and percentage is read as the decimal that you write. `stages` and `start` are also
    attributes.

    Sources: 1-sqrt, Hägele et al. 2024 (arXiv:2405.18392); restarts, SGDR, Loshchilov & Hutter 2017
    (arXiv:1608.03983).

    Args:
        stages: A sequence of tuples (steps,), (steps, to) or (steps, to, shape): a stage reaches
            the level `to`, in [0, 1], after `steps` steps, 1 … 2³¹ - 1 in all. The curve stores
            each stage as a named tuple (steps, to, shape), `(steps, None, "linear")` for (steps,).
            With `total_steps`, a number of steps may be a percentage of it, such as `"2%"`, which
            is rounded down, and one may be `"rest"`, the steps that the other stages leave.
        start: The level at step 0, 0 to 1.
        total_steps: The number of steps of all stages together.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A value is out of range; lengths that do not add up to `total_steps`; a
            percentage or `"rest"` without `total_steps`; an unknown shape; an exponential or
            `"t^-P"` stage from or to 0.

    Warns:
        CurveWarning: Every level is 0, or below 0.01 like a learning rate. A percentage above 0
            rounds to no step.

    >>> from plateau_jax import StagedCurve
    >>> curve = StagedCurve([(100, 1.0), (800,), (100, 0.0, "1-sqrt")])
    >>> curve([0, 50, 100, 899, 925, 1000])
    array([0. , 0.5, 1. , 1. , 0.5, 0. ], dtype=float32)
    >>> stages = [("2%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]
    >>> [stage.steps for stage in StagedCurve(stages, total_steps=10_000).stages]
    [200, 7800, 2000]
    """

    stages: tuple[Stage, ...]
    start: float

    # Written by hand for `total_steps`, which is not a field: `dataclasses.replace` would pass the
    # old total with new stages.
    def __init__(
        self,
        stages: Sequence[Stage | tuple[Any, ...]],
        *,
        start: float = 0.0,
        total_steps: Count | None = None,
    ) -> None:
        checked = _check_stages(stages, total_steps)
        total = sum(stage.steps for stage in checked)
        if not 1 <= total <= MAX_STEP:
            advice = ""
            if total > MAX_STEP:
                advice = f". {checks.COUNT_DATA}"
            limits = f"which must lie in 1 … {MAX_STEP}{advice}"
            raise ValueError(Message("stages", f" add up to {total} steps, {limits}"))
        level = checks.ratio("start", start)
        vars(self).update(stages=checked, start=level)
        self._set_segments(_exact_segments(checked, as_level(level)))

        highest = max(level, *(stage.to or 0 for stage in checked))
        if highest == 0:
            problem = " = 0 and no stage rises, so the curve is 0 at every step"
            warn(Message("start", f"{problem}. To begin at the peak write start=1.0"))
        _warn_of_low_levels("stages", highest)

    @classmethod
    def wsd(
        cls,
        total_steps: Count,
        *,
        warmup_steps: Count,
        decay_steps: Count,
        decay_shape: str = "1-sqrt",
        min_lr_ratio: float = 0.0,
        start: float = 0.0,
    ) -> Self:
        """Return a warmup-stable-decay curve: a linear warmup, the peak, then a decay at the end.

        With N = `total_steps`, W = `warmup_steps`, D = `decay_steps`, r = `min_lr_ratio` and
        s = `start`, it is

            s + (1 - s)·step/W    for step < W
            1                     for W <= step < N - D
            1 + (r - 1)·√x        for N - D <= step < N, with x = (step - (N - D))/D
            r                     after that

        The third line is for the default shape of the decay, `"1-sqrt"`; the class has the
        equations of the others. Source: MiniCPM, Hu et al. 2024 (arXiv:2404.06395).

        Args:
            total_steps: Number of steps of the whole curve, 1 to 2³¹ - 1.
            warmup_steps: Steps from `start` to 1, or a percentage of `total_steps` such as `"2%"`,
                which is rounded down. With 0 the curve begins at 1.
            decay_steps: Steps from 1 to `min_lr_ratio`, or a percentage. With 0 the curve stays at
                1 up to `total_steps`, where it drops to `min_lr_ratio`.
            decay_shape: Any shape of a stage.
            min_lr_ratio: The level at the end, 0 to 1.
            start: The level at step 0, 0 to 1, without effect if there is no warmup. With 0 the
                first update changes nothing. For a warmup of (step + 1)/W write
                `warmup_steps=W - 1, start=1 / W`.

        Returns:
            `StagedCurve([(W, 1.0), (N - D - W,), (D, r, decay_shape)], start=s)`.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A value is out of range; warmup and decay are longer than `total_steps`
                together; an unknown shape; an exponential or `"t^-P"` decay to 0.

        Warns:
            CurveWarning: A percentage above 0 rounds to no step. `min_lr_ratio` is above 0 and
                below 1e-4, and so looks like a learning rate.

        >>> from plateau_jax import StagedCurve
        >>> curve = StagedCurve.wsd(10_000, warmup_steps=500, decay_steps="20%")
        >>> curve([250, 500, 8000, 8500, 10_000])
        array([0.5, 1. , 1. , 0.5, 0. ], dtype=float32)
        """
        total = checks.count("total_steps", total_steps, 1, MAX_STEP)
        warmup = length_in_steps("warmup_steps", warmup_steps, total)
        decay = length_in_steps("decay_steps", decay_steps, total)
        if warmup + decay > total:
            problem = f" = {warmup} + {decay} must be at most total_steps = {total}"
            raise ValueError(Message("warmup_steps + decay_steps", problem))

        lowest = checks.ratio("min_lr_ratio", min_lr_ratio)
        shape = known_shapes.canonical_shape("decay_shape", decay_shape, known_shapes.SHAPES)
        if decay:
            known_shapes.check_defined("decay_shape", shape, "decay", Level(1), as_level(lowest))

        warn_of_small_end(lowest)
        stable = total - warmup - decay
        return cls([(warmup, 1.0), (stable,), (decay, lowest, shape)], start=start)

    @classmethod
    def through(cls, points: Iterable[tuple[Any, Any]] | NDArray[Any]) -> Self:
        """Return a curve of straight lines through points (step, level).

        From a point (s, a) to the next one, (t, b), the level at a step is

            a + (b - a)·(step - s)/(t - s)      for s <= step < t

        At every point the curve is the float32 nearest to the level. So a table, or any function f
        of the step, becomes a curve: `through([(s, f(s)) for s in range(0, n + 1, k)])`. If f is
        smooth, the curve is at most k²·max∣f″∣/8 away from f between the points. Two points at one
        step make a jump to the second.

        A curve of a million points takes about 20 seconds to build, and 1.3 GB. Records and states
        contain all points.

        Args:
            points: At least two pairs of a step and a level in [0, 1]: a sequence, an iterator such
                as `zip(steps, levels)`, or an array of shape (n, 2), in which steps may be whole
                floats. The first step is 0, the last is `total_steps`, and none is below the one
                before it.

        Returns:
            A curve with one stage fewer than there are points.

        Warns:
            CurveWarning: Every level is 0, or below 0.01 like a learning rate.

        >>> from plateau_jax import StagedCurve
        >>> curve = StagedCurve.through([(0, 0.0), (500, 1.0), (8_000, 0.7), (10_000, 0.0)])
        >>> curve([0, 250, 500, 8000, 9000, 10_000])
        array([0.  , 0.5 , 1.  , 0.7 , 0.35, 0.  ], dtype=float32)
        """
        checked = _check_points(points)
        _, start = checked[0]
        stages: list[Stage] = []
        for (step, level), (next_step, to) in pairwise(checked):
            steps = next_step - step
            if to == level:
                stages.append(Stage(steps))
            else:
                stages.append(Stage(steps, to))

        with suppress_warnings():  # they would name stages, which the user did not write
            curve = cls(stages, start=start)

        highest = max(level for _, level in checked)
        if highest == 0:
            warn(Message("points", " have no level above 0, so the curve is 0 at every step"))
        _warn_of_low_levels("points", highest)
        return curve


def _warn_of_low_levels(name: str, highest: float) -> None:
    """Warn if the levels look like learning rates."""
    if 0 < highest < 0.01:
        problem = f" have levels that look like learning rates, up to {highest!r}"
        advice = "Write each as learning rate / peak"
        warn(Message(name, f"{problem}, but are fractions of the peak. {advice}"))


def _check_points(points: Any) -> list[tuple[int, float]]:
    """Return the points, whose steps begin at 0, never fall and end above 0."""
    checked: list[tuple[int, float]] = []
    previous = 0
    order = "a point is (step, level)"
    for path, step, level in checks.pairs("points", points, "(step, level)"):
        path_of_step = (*path, "step")
        if isinstance(step, np.floating) and step.is_integer():
            # An array has one dtype: next to levels, steps are floats.
            step = int(cast("Any", step))
        step = checks.count(path_of_step, step, previous, MAX_STEP, f"{checks.A_COUNT}; {order}")
        if not checked and step > 0:
            raise ValueError(checks.must(path_of_step, step, f"be 0 in the first point; {order}"))
        checked.append((step, checks.ratio((*path, "level"), level, f"lie in [0, 1]; {order}")))
        previous = step

    if len(checked) < 2:
        raise ValueError(
            checks.must("points", checked, "contain at least two points (step, level)")
        )
    # The last one is total_steps.
    checks.positive_int(("points", len(checked) - 1, "step"), previous)
    return checked


def _check_stages(stages: Any, total_steps: Any) -> tuple[Stage, ...]:
    """Return the stages with their lengths in steps.

    They add up to `total_steps` if that is given.
    """
    if not checks.is_ordered(stages):
        raise TypeError(checks.must("stages", stages, "be a sequence of stages (steps, to, shape)"))
    total = None
    if total_steps is not None:
        total = checks.count("total_steps", total_steps, 1, MAX_STEP)
    checked = [_check_stage(("stages", index), stage) for index, stage in enumerate(stages)]
    lengths = lengths_in_steps([stage.steps for stage in checked], total)
    return tuple(stage._replace(steps=steps) for stage, steps in zip(checked, lengths, strict=True))


def _check_stage(path: Path, stage: Any) -> Stage:
    """Return the stage with its level and shape checked; its length is left as it was given."""
    items = tuple(stage) if checks.is_ordered(stage) else ()
    if not 1 <= len(items) <= 3:
        layout = "be a stage (steps, to, shape); to and shape may be left out"
        raise TypeError(checks.must(path, stage, layout))
    steps, to, shape = Stage(*items)
    if to is not None:
        order = "a stage is (steps, to, shape)"
        to = checks.number((*path, "to"), to, f"be a number; {order}")
        to = checks.ratio((*path, "to"), to, f"lie in [0, 1]; {order}")
    shape = known_shapes.canonical_shape((*path, "shape"), shape, known_shapes.SHAPES)
    return Stage(steps, to, shape)


def _exact_segments(stages: Sequence[Stage], start: Level) -> Iterator[ExactSegment]:
    """Yield a segment for each stage but jumps, and the end."""
    begin = 0
    level = start
    for index, (steps, to, shape) in enumerate(stages):
        if to is None:
            yield flat_segment("plateau", begin, steps, level)
        elif steps == 0:
            level = as_level(to)  # a jump
        else:
            target = as_level(to)
            path = "stages", index, "shape"
            known_shapes.check_defined(path, shape, "stage", level, target)
            yield ExactSegment("stage", begin, steps, level, target, shape)
            level = target
        begin += steps
    yield flat_segment("end", begin, 0, level)
