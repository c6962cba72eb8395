"""`Curve`, the base class of every kind of curve."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP, Count
from plateau_jax.curves import serialization
from plateau_jax.numerics import Level, rounded
from plateau_jax.saved_states.storable import Storable
from plateau_jax.table import evaluation, exact_segments, fitting
from plateau_jax.table.evaluation import PYTHON, Table, WideTable, evaluate
from plateau_jax.table.exact_segments import ExactSegment
from plateau_jax.table.segments import Segment, list_segments

Step = int | np.integer[Any]
Steps = NDArray[Any] | Sequence[Any]

_MAX_DEPTH = 64


class Curve(Storable):
    """A learning-rate curve. Called with a step, it returns a multiplier in [0, 1].

        lr(step) = float32(float32(peak) · curve(step))

    Build a curve as a `PlateauCurve` or a `StagedCurve`; `cooldown`, `then`, `part` and
    `BatchPlan.scale` derive new curves from it. Curves are frozen, hashable, and equal if they have
    the same class and arguments. The `repr` of a curve is a Python expression that builds it.

    Every multiplier is a float32 within 0.500000001 units in the last place of the exact curve, 0
    below 2⁻¹²⁶, and has the same bits in NumPy, JAX and PyTorch. On GPUs, only an earlier form of
    the table was tested (`docs/how_it_works.md`). Multipliers never rise within a falling segment
    and never fall within a rising one.

    >>> from plateau_jax import Curve, PlateauCurve
    >>> curve: Curve = PlateauCurve(1000, warmup_steps=100)
    >>> curve([0, 50, 100, 1000])
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    total_steps: int
    """Number of steps; from this step on, the curve keeps its last level."""

    unit: int | None
    """Samples or tokens per step of a curve from `BatchPlan.scale`; else None."""

    _exact_segments: tuple[ExactSegment, ...]
    """The segments in exact numbers, none empty; the last is the end."""

    _depth: int  # of nested derived curves

    def __init_subclass__(cls, *, kind: str) -> None:
        super().__init_subclass__(kind=kind)
        serialization.CURVE_CLASSES[kind] = cls

    def _set_segments(
        self,
        segments: Iterable[ExactSegment],
        unit: int | None = None,
        parents: Sequence["Curve"] = (),
    ) -> None:
        """Set what follows from the arguments, which the constructor has checked and set."""
        depth = max((1 + parent._depth for parent in parents), default=0)
        # Python's recursion limit would let a deeper curve be saved, but not be loaded.
        if depth > _MAX_DEPTH:
            problem = f"curves are nested {depth} deep, at most {_MAX_DEPTH} may be"
            raise ValueError(f"{problem}: join many in halves, a.then(b).then(c.then(d))")
        exact = tuple(exact_segments.drop_empty([*segments]))
        # Without `vars`, a frozen dataclass allows no assignment.
        vars(self).update(
            _exact_segments=exact, total_steps=exact[-1].begin, unit=unit, _depth=depth
        )

    @cached_property
    def table(self) -> Table:
        """The curve as a table, for `multiplier`: a pytree of int32 arrays.

        Their lengths are rounded up to powers of two, so moving a plateau rarely changes a shape.
        """
        return evaluation.in_int32(self._wide_table)

    @cached_property
    def _wide_table(self) -> WideTable:
        return fitting.build_table(self._exact_segments)

    @cached_property
    def _python_table(self) -> WideTable:
        return evaluation.in_python(self._wide_table)

    @cached_property
    def flat_starts(self) -> tuple[int, ...]:
        """The first step of each plateau: flat segments before the end with one multiplier."""
        return tuple(exact_segments.flat_starts(self._exact_segments))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that `describe` prints: warmup, plateaus, decays, and the end.

        Each is a named tuple of `first_step`, `last_step` (None for the end), `kind`, and the
        multipliers at its beginning and at its end, `start` and `end`.
        """
        return list_segments(self._exact_segments)

    @overload
    def __call__(self, step: Step) -> float: ...
    @overload
    def __call__(self, step: Steps) -> NDArray[np.float32]: ...
    def __call__(self, step: Step | Steps) -> float | NDArray[np.float32]:
        """Return the multiplier at each step.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.

        Returns:
            A Python float for a single integer; else float32 in the shape of `step`.

        Raises:
            TypeError: A step is not an integer, or is a JAX array: use `optax_schedule`.
        """
        if type(step) is int:
            return evaluate(PYTHON, self._python_table, min(max(step, 0), MAX_STEP))
        steps = checks.clamp_steps(step)
        if isinstance(step, int | np.integer):
            return self(int(steps))
        return evaluation.evaluate_many(self._wide_table, steps)[()]

    @overload
    def learning_rate(self, step: Step, peak_value: float) -> float: ...
    @overload
    def learning_rate(self, step: Steps, peak_value: float) -> NDArray[np.float32]: ...
    def learning_rate(self, step: Step | Steps, peak_value: float) -> float | NDArray[np.float32]:
        """Return the learning rate at each step.

            lr(step) = float32(float32(peak_value) · curve(step))

        These are the values that `lambda_lr` writes and `optax_schedule` returns.

        Args:
            step: As in a call of the curve.
            peak_value: The peak learning rate: 0, or at least 2⁻¹²⁶.

        Returns:
            A Python float or an array, as a call of the curve.

        >>> from plateau_jax import PlateauCurve
        >>> PlateauCurve(1000, warmup_steps=100).learning_rate(100, 3e-4)
        0.0003000000142492354
        >>> PlateauCurve(4, decay_shape="linear").learning_rate(range(4), 0.5)
        array([0.5  , 0.375, 0.25 , 0.125], dtype=float32)
        """
        multiplier = cast("Any", self(step))
        lr = checks.peak("peak_value", peak_value) * multiplier
        if isinstance(multiplier, float):
            return float(lr)
        return lr

    # The classes of derived curves derive from this one, so they are looked up by their kinds.

    def cooldown(
        self, at: Count, steps: Count, *, to: float = 0.0, shape: str = "1-sqrt"
    ) -> "Curve":
        """Return a curve that leaves this one at step `at` and ends at `to` after `steps` steps.

        Before step `at` both curves have the same bits, so a checkpoint that was saved at or before
        step `at` can be loaded under the new curve. With the level a at step `at`, b = `to` and
        x = (step - at)/steps, the level of the default shape is

            a + (b - a)·√x

        `StagedCurve` has the equations of the other shapes. Source: Hägele et al. 2024
        (arXiv:2405.18392).

        Args:
            at: First step of the cooldown, at least 0; it may lie past `total_steps`.
            steps: Steps of the cooldown, at least 1.
            to: The level at the end of the cooldown, not above the level at step `at`.
            shape: Any shape of a stage.

        Raises:
            TypeError, ValueError: An argument is wrong; an exponential or `"t^-P"` cooldown to 0;
                derived curves nested more than 64 deep.

        Warns:
            CurveWarning: The curve is 0 at step `at` already; or `to` is at least 1e-6 and below
                1e-4, and so looks like a learning rate.

        >>> from plateau_jax import PlateauCurve
        >>> stable = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 90)])
        >>> stable.cooldown(4000, 1000)([3999, 4000, 4250, 5000])
        array([1. , 1. , 0.5, 0. ], dtype=float32)
        """
        return serialization.CURVE_CLASSES["cooldown"](self, at, steps, to=to, shape=shape)

    def then(self, other: "Curve", *, scale: float = 1.0) -> "Curve":
        """Return a curve that follows this one to its end, then `other` times `scale`.

            curve(step)                          for step < total_steps
            scale · other(step - total_steps)    after that

        Source of restarts: SGDR, Loshchilov & Hutter 2017 (arXiv:1608.03983).

        To join many curves, join them in halves: `a.then(b).then(c.then(d))`.

        Args:
            other: The curve that follows.
            scale: Factor for the levels of `other`, above 0 and at most 1.

        Raises:
            TypeError, ValueError: An argument is wrong; curves with different units.

        Warns:
            CurveWarning: `scale` is at least 1e-6 and below 1e-3, and so looks like a learning
                rate.

        >>> from plateau_jax import PlateauCurve
        >>> cycle = PlateauCurve(100, warmup_steps=10)
        >>> cycle.then(cycle, scale=0.5)([10, 100, 110, 200])
        array([1. , 0. , 0.5, 0. ], dtype=float32)
        """
        return serialization.CURVE_CLASSES["then"](self, other, scale=scale)

    def part(self, start: Count = 0, stop: Count | None = None) -> "Curve":
        """Return the steps `start` … `stop` - 1 of this curve, as a curve.

            part(step) = curve(start + step)      for 0 <= step <= stop - start

        The multipliers have the same bits, except in rare cases of rounding
        (`docs/how_it_works.md`). After these steps the part stays at its level.

        Args:
            start: First step of the part.
            stop: First step after the part; `total_steps` by default.

        Raises:
            TypeError, ValueError: Not counts with 0 <= start < stop <= total_steps.

        >>> from plateau_jax import PlateauCurve
        >>> PlateauCurve(1000).part(0, 500)([0, 250, 500, 900])
        array([1.       , 0.8535534, 0.5      , 0.5      ], dtype=float32)
        """
        return serialization.CURVE_CLASSES["part"](self, start, stop)

    def same_until(self, other: "Curve", step: int) -> bool:
        """Return True if both curves have the same multiplier at every step below `step`.

        If so, a run that was saved under one of them at or before `step` can resume under the
        other (with a clock, before `step`). Moving segments count as equal only if they have the
        same first step, length, shape and levels.

        Args:
            other: The curve to compare with.
            step: The first step that is not compared; at least 0.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.same_until(curve.cooldown(500, 100), 500)
        True
        """
        step = checks.at_least("step", step, 0)
        difference = self.first_difference(other)
        return difference is None or step <= difference

    def first_difference(self, other: "Curve") -> int | None:
        """Return the first step at which the curves differ (`same_until`); None if they never do.

        Args:
            other: The curve to compare with.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.first_difference(curve.cooldown(500, 100))
        501
        """
        other = check_curve("other", other)
        segments, other_segments = self._exact_segments, other._exact_segments
        for step, after, is_constant in exact_segments.differences(segments, other_segments):
            if self(step) != other(step):
                return step
            # A level that was read from a curve, or computed, need not be the exact one.
            if is_constant:
                continue
            if self._level_at(step) != other._level_at(step):
                return step
            # Different segments may agree at their first step: a cooldown starts on the curve that
            # it leaves.
            if after != step + 1:
                return step + 1
        return None

    def _level_at(self, step: int) -> Level:
        return rounded(exact_segments.segment_at(self._exact_segments, step).at(step))

    # Tools, which are imported when they are called.

    def describe(self) -> str:
        """Return a table of the segments as text.

        >>> from plateau_jax import PlateauCurve
        >>> print(PlateauCurve(1000, warmup_steps=100).describe())
        first step  last step  kind                 from          to
                 0         99  linear warmup           0           1
               100        999  cosine decay            1           0
              1000          …  end                     0           0
        """
        from plateau_jax.tools.drawing.segment_table import segment_table

        return segment_table(self.segments)

    def plot(self, *, peak_value: float = 1.0, ax: Any = None) -> Any:
        """Plot the learning rate against the step, as `plateau_jax.plot` does."""
        from plateau_jax.tools.drawing import plots

        return plots.plot(self, peak_value=peak_value, ax=ax)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a plot and the table of `describe`, without matplotlib."""
        from plateau_jax.tools.drawing import notebook

        return notebook.html(self)

    def to_source(self, peak_value: float | None = None) -> str:
        """Return the text of a Python file that computes this curve, and needs only Python 3.9.

        Its functions `multiplier(step)` and `learning_rate(step, peak)` return the bits of the
        curve.

        Args:
            peak_value: The default of the argument `peak` of `learning_rate`, if it has one.

        >>> from plateau_jax import PlateauCurve
        >>> schedule = {}
        >>> exec(PlateauCurve(1000, warmup_steps=100).to_source(), schedule)
        >>> schedule["learning_rate"](50, 3e-4)
        0.0001500000071246177
        """
        from plateau_jax.tools.export.python_source import python_source

        return python_source(self, peak_value)

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """Build the curve that `to_dict` or a configuration file describes.

        Args:
            arguments: The `kind` of the curve, and its arguments under their names. They are those
                of a `PlateauCurve` for `"plateau"`, and those of a `StagedCurve` for `"staged"`,
                which is also how to write warmup–stable–decay. For the other kinds they are:

                - `"cooldown"`: `curve`, `at`, `steps`, `to`, `shape`.
                - `"then"`: `curve`, `other`, `scale`.
                - `"part"`: `curve`, `start`, `stop`.
                - `"scaled"`: `curve`, `pairs`, `unit`, `reference`, `exponent`.

                `curve` and `other` are such mappings too.

        Raises:
            TypeError, ValueError: The kind or an argument is missing, unknown or wrong. The message
                names it by its path, as in `curve.stages[1].to`.

        >>> from plateau_jax import Curve
        >>> stages = [["2%", 1.0], ["rest"], ["20%", 0.0, "1-sqrt"]]  # as in a YAML file
        >>> curve = Curve.from_dict({"kind": "staged", "total_steps": 10_000, "stages": stages})
        >>> curve.to_dict()  # doctest: +NORMALIZE_WHITESPACE
        {'kind': 'staged',
         'stages': [[200, 1.0, 'linear'], [7800, None, 'linear'], [2000, 0.0, '1-sqrt']],
         'start': 0.0}
        """
        return serialization.curve_from_dict(cls, arguments)


def check_curve(path: checks.Path | str, value: Any) -> Curve:
    """Return a curve; raise a TypeError for anything else."""
    if isinstance(value, Curve):
        return value
    requirement = "be a Curve"
    if isinstance(value, Mapping):
        requirement += ": Curve.from_dict builds one from a mapping"
    raise TypeError(checks.must(path, value, requirement))
