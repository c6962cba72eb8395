"""`Curve`, the base class of every kind of curve."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP, Count
from plateau_jax.curves import averaging_weights, serialization
from plateau_jax.drawing import axes, notebook, sampling
from plateau_jax.drawing.segment_table import Segment, list_segments, segment_table
from plateau_jax.export.rows import exported_rows
from plateau_jax.export.source import python_source
from plateau_jax.export.vectors import VectorInputs
from plateau_jax.numerics import exact
from plateau_jax.table import evaluation, exact_segments, fitting
from plateau_jax.table.evaluation import PYTHON, Table, WideTable, evaluate
from plateau_jax.table.exact_segments import ExactSegment


class Curve(ABC):
    """A learning-rate curve. Called with a step, it returns a multiplier in [0, 1].

        lr(step) = float32(float32(peak) · curve(step))

    Build a curve as a `PlateauCurve` or a `StagedCurve`; `cooldown`, `then`, `part` and
    `BatchPlan.scale` derive new curves from it. Curves are frozen. Curves of one class with the
    same arguments are equal and have the same hash. The `repr` of a curve is a Python expression
    that builds it.

    Every multiplier is a float32 within 0.500000001 units in the last place of the exact curve, 0
    below 2⁻¹²⁶, and has the same bits in NumPy, JAX and PyTorch. Multipliers never rise within a
    falling segment and never fall within a rising one.

    >>> from plateau_jax import Curve, PlateauCurve
    >>> curve: Curve = PlateauCurve(1000, warmup_steps=100)
    >>> curve([0, 50, 100, 1000])
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    >>> curve.learning_rate(50, 0.5)
    0.25
    """

    total_steps: int
    """Number of steps. From this step on the curve keeps its last level; before step 0, its first
    value."""

    unit: int | None
    """Samples or tokens per step, for a curve from `BatchPlan.scale` or derived from one; else
    None."""

    _exact_segments: tuple[ExactSegment, ...]
    """The segments in exact numbers; the last is the end."""

    _depth: int
    """Nesting depth of derived curves."""

    _kind: ClassVar[str | None] = None
    """The value of `"kind"` in `to_dict`; None if there is no such key."""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            raise TypeError(
                f"{cls.__name__} cannot be derived from a curve: write a function that returns the "
                "curve, or a class that contains it"
            )
        if Curve not in cls.__bases__:
            return  # gin derives a class from a kind, but builds the kind itself
        cls._kind = kind
        serialization.CURVE_CLASSES.setdefault(kind, cls)

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the arguments, set them, then call `_freeze` with their segments."""

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _freeze(
        self, segments: Iterable[ExactSegment], *, depth: int = 0, unit: int | None = None
    ) -> None:
        """Set the other attributes of a curve, after its arguments have been checked and set."""
        registered = serialization.CURVE_CLASSES[self._kind]
        if type(self) is not registered:
            known = f"plateau_jax.{registered.__name__}"
            raise TypeError(
                f"this {type(self).__name__} is not {known}, but a class derived from it, or the "
                f"module was loaded twice: build the curve with {known}"
            )
        segments = tuple(segments)
        object.__setattr__(self, "__dict__", _ProtectedDict(vars(self)))
        self._set(_exact_segments=segments, _depth=depth, unit=unit)
        self._set(total_steps=segments[-1].begin)

    @cached_property
    def table(self) -> Table:
        """The curve as a table, for `multiplier` and `stack`: a pytree of int32 arrays.

        It is built when the curve is first evaluated. Its arrays have the lengths that the curve
        needs, rounded up to powers of two, so moving a plateau rarely changes a shape. They are
        internal, and may change in any release: `segments` has the first step of each segment.
        """
        return evaluation.in_words(self._wide_table)

    @cached_property
    def _wide_table(self) -> WideTable:
        return fitting.build_table(self._exact_segments)

    @cached_property
    def _python_table(self) -> WideTable:
        return evaluation.in_python(self._wide_table)

    @cached_property
    def flat_starts(self) -> tuple[int, ...]:
        """The first step of each plateau, a sequence of steps at one exact level before the end."""
        return tuple(exact_segments.flat_starts(self._exact_segments))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that `describe` prints: warmup, plateaus, decays, and the end.

        Each is a named tuple of `first_step`, `last_step` (None for the end), `kind`, `start` and
        `end`. The last two are the multipliers at its beginning and at its end, float32 numbers. So
        `curve(segment.first_step) == segment.start`.

        >>> from plateau_jax import StagedCurve
        >>> curve = StagedCurve.wsd(1000, warmup_steps=50, decay_steps="20%")
        >>> [segment.first_step for segment in curve.segments]
        [0, 50, 800, 1000]
        """
        return list_segments(self._exact_segments, self)

    @overload
    def __call__(self, step: int | np.integer[Any]) -> float: ...
    @overload
    def __call__(self, step: NDArray[Any] | Sequence[Any]) -> NDArray[np.float32]: ...
    def __call__(self, step: Any) -> Any:
        """Return the multiplier at each step.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.

        Returns:
            Multipliers in [0, 1] of dtype float32: a Python float for a single integer, Python's or
            NumPy's; a NumPy scalar for an array without dimensions; else an array of the same
            shape.

        Raises:
            TypeError: A step is not an integer (a bool, a float such as 3.0, a str), or is a JAX
                array: in JAX, evaluate the curve with `optax_schedule` or `multiplier`.
        """
        if type(step) is int:
            # torch.compile may trace an int as a symbol; `index` turns it into the number itself.
            clamped = min(max(operator.index(step), 0), MAX_STEP)
            return _evaluate_one(self, clamped)
        steps = checks.steps(step)
        if isinstance(step, int | np.integer):
            return self(int(steps))
        return evaluation.evaluate_many(self._wide_table, steps)[()]

    @overload
    def learning_rate(self, step: int | np.integer[Any], peak_value: float) -> float: ...
    @overload
    def learning_rate(
        self, step: NDArray[Any] | Sequence[Any], peak_value: float
    ) -> NDArray[np.float32]: ...
    def learning_rate(self, step: Any, peak_value: float) -> Any:
        """Return the learning rate at each step.

            lr(step) = float32(float32(peak_value) · curve(step))

        These are the values that `lambda_lr` writes and `optax_schedule` returns. Use them for a
        library that asks for a number or a function of the step. The plain product
        `peak * curve(step)` differs in the last bit of float32 at many steps, because Python rounds
        neither the peak nor the product to float32.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.
            peak_value: The peak learning rate: 0, or at least 2⁻¹²⁶.

        Returns:
            A Python float for a single integer, Python's or NumPy's; else an array of dtype float32
            and the step's shape.

        Raises:
            TypeError: As the curve itself; `peak_value` is not a real scalar.
            ValueError: `peak_value` is negative, not finite, or positive and below 2⁻¹²⁶.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.learning_rate(100, 3e-4)
        0.0003000000142492354
        >>> curve.learning_rate([0, 50, 100], 0.5)
        array([0.  , 0.25, 0.5 ], dtype=float32)
        """
        multiplier = cast("Any", self(step))
        lr = checks.peak("peak_value", peak_value) * multiplier
        if isinstance(multiplier, float):
            return float(lr)
        return lr

    @overload
    def between(self, step: int | np.integer[Any], low: float, high: float) -> float: ...
    @overload
    def between(
        self, step: NDArray[Any] | Sequence[Any], low: float, high: float
    ) -> NDArray[np.float32]: ...
    def between(self, step: Any, low: float, high: float) -> Any:
        """Return a value at each step: `low` where the multiplier is 0, `high` where it is 1.

            value(step) = float32(low + (high - low)·curve(step))

        The exact value is rounded once, so every machine gets the same bits. Use it for what is not
        a learning rate: the weight of a loss, a dropout rate, the decay factor of an average, a
        temperature. If `low > high`, the value falls where the curve rises.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.
            low: The value at multiplier 0, any number that float32 can hold.
            high: The value at multiplier 1, the same.

        Returns:
            A Python float for a single integer, Python's or NumPy's; else an array of dtype float32
            and the step's shape.

        Raises:
            TypeError: As the curve itself; `low` or `high` is not a number.
            ValueError: `low` or `high` is not finite, or too large for float32.

        >>> from plateau_jax import PlateauCurve, StagedCurve
        >>> cosine = PlateauCurve(100)
        >>> cosine.between([0, 50, 100], 1.0, 0.996)  # the decay of an average, from 0.996 to 1
        array([0.996, 0.998, 1.   ], dtype=float32)
        >>> StagedCurve([(10, 1.0), (90,)]).between(5, -2.0, 1.0)
        -0.5
        """
        lowest = float(checks.float32("low", low))
        highest = float(checks.float32("high", high))
        multipliers = np.asarray(self(step), np.float32)
        values = exact.values_between(lowest, highest, multipliers)
        if isinstance(step, int | np.integer):
            return float(values)
        return values[()]

    def cooldown(
        self, at: Count, steps: Count, *, to: float = 0.0, shape: str = "1-sqrt"
    ) -> "Curve":
        """Return a curve that leaves this one at step `at` and falls to `to` in `steps` steps.

        Use it to end a long run early, or to branch finished models off a run that continues.
        Before step `at` both curves have the same bits, so a checkpoint that was saved at or before
        step `at` can be loaded under the new curve.

        With the exact level a at step `at`, b = `to` and x = (step - at)/steps, the cooldown's
        level is

            "1-sqrt"         a + (b - a)·√x
            "linear"         a + (b - a)·x
            "cosine"         a + (b - a)·(1 - cos πx)/2
            "exponential"    a^(1-x)·b^x
            "1-x^P"          a + (b - a)·x^P
            "(1-x)^P"        b + (a - b)·(1-x)^P
            "t^-P"           t^(-P), t = a^(-1/P)·(1-x) + b^(-1/P)·x

        Write P as a decimal, as in `"1-x^2"`; `StagedCurve` gives its range.

        Sources: cooldowns from a constant learning rate, and 1-sqrt, Hägele et al. 2024
        (arXiv:2405.18392); linear to 0, Defazio et al. 2023 (arXiv:2310.07831).

        Args:
            at: First step of the cooldown, at least 0; it may lie past `total_steps`.
            steps: Steps of the cooldown, at least 1.
            to: The level at the end of the cooldown, not above the level at step `at`.
            shape: `"linear"`, `"cosine"`, `"1-sqrt"`, `"exponential"`, `"1-x^P"`, `"(1-x)^P"` or
                `"t^-P"`.

        Returns:
            A curve of `at + steps` steps.

        Raises:
            TypeError: `at` or `steps` is not an integer, `to` not a number.
            ValueError: A value is out of range; an unknown shape; an exponential or `"t^-P"`
                cooldown to 0; derived curves nested more than 64 deep.

        Warns:
            CurveWarning: The curve is 0 at step `at` already.

        >>> from plateau_jax import PlateauCurve
        >>> stable = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 90)])
        >>> branch = stable.cooldown(4000, 1000)
        >>> branch([3999, 4000, 4250, 5000]), branch.total_steps
        (array([1. , 1. , 0.5, 0. ], dtype=float32), 5000)
        """
        return serialization.CURVE_CLASSES["cooldown"](self, at, steps, to=to, shape=shape)

    def then(self, other: "AnyCurve", *, scale: float = 1.0) -> "Curve":
        """Return a curve that follows this one to its end, then `other` times `scale`.

            curve(step)                          for step < total_steps
            scale · other(step - total_steps)    after that

        Use it for restarts, for a longer run, or for a second phase of training. Source of
        restarts: SGDR, Loshchilov & Hutter 2017 (arXiv:1608.03983).

        Args:
            other: The curve that follows, or a mapping that `from_dict` reads.
            scale: Factor for the levels of `other`, above 0 and at most 1.

        Returns:
            A curve of `self.total_steps + other.total_steps` steps.

        Raises:
            TypeError: `other` is not a curve, `scale` not a number.
            ValueError: A `scale` outside (0, 1]; more than 2³¹ - 1 steps in all; curves with
                different units; derived curves nested more than 64 deep.

        >>> from plateau_jax import PlateauCurve
        >>> cycle = PlateauCurve(100, warmup_steps=10)
        >>> restarted = cycle.then(cycle, scale=0.5)
        >>> restarted([10, 100, 110, 200]), restarted.total_steps
        (array([1. , 0. , 0.5, 0. ], dtype=float32), 200)
        """
        return serialization.CURVE_CLASSES["then"](self, other, scale=scale)

    def part(self, start: Count = 0, stop: Count | None = None) -> "Curve":
        """Return the steps `start` … `stop` - 1 of this curve, as a curve.

            part(step) = curve(start + step)      for 0 <= step < stop - start

        These multipliers have the same bits as those of the curve. After them the part stays at the
        level of the curve at `stop`; if the curve jumps there, this is the level after the jump.

        Use it for a run that ends before its decay does. Or use it to stretch a decay in progress:
        join the part of this curve up to a step to the part of a longer curve that begins at the
        same level.

        Args:
            start: First step of the part.
            stop: First step after the part; `total_steps` by default.

        Returns:
            A curve of `stop - start` steps.

        Raises:
            TypeError: `start` or `stop` is not an integer.
            ValueError: 0 <= start < stop <= total_steps is false; derived curves nested more than
                64 deep.

        >>> from plateau_jax import PlateauCurve
        >>> cosine = PlateauCurve(1000)
        >>> half = cosine.part(0, 500)
        >>> half([0, 250, 500, 900]), half.total_steps
        (array([1.       , 0.8535534, 0.5      , 0.5      ], dtype=float32), 500)
        >>> half.then(cosine.part(500)).same_until(cosine, 2000)
        True
        """
        return serialization.CURVE_CLASSES["part"](self, start, stop)

    def merge_weights(
        self,
        steps: Sequence[int] | NDArray[np.integer[Any]],
        *,
        mean_of: int | Sequence[int] | NDArray[np.integer[Any]] | None = None,
    ) -> NDArray[np.float64]:
        """Return weights that turn checkpoints of a constant learning rate into a cooldown.

        Instead of cooling down, keep training at the level of step `steps[0]`, and save checkpoints
        θ₀, …, θ_k after `steps[0]`, …, `steps[k]` updates. Their weighted mean Σ c_j θ_j
        approximates the model that a run under this curve would end with:

            w_j = mean of curve(steps[j-1]), …, curve(steps[j] - 1), divided by curve(steps[0])
            c₀ = 1 - w₁,    c_j = w_j - w_{j+1},    c_k = w_k

        With plain SGD, the same gradients and a checkpoint after every update, this is exact. With
        fewer checkpoints or a different optimizer, the mean is close to a cooldown. Whether its
        loss is as low depends on the problem: compare both once. `torch_bridge.Checkpoints.merge`
        computes the mean of saved models.

        A checkpoint may instead contain the mean of the weights after each of the last `mean_of`
        updates, a block. Then start, length and shape of the cooldown can be chosen after the run,
        and few checkpoints are enough. Block j begins at step b_j = steps[j] - mean_of. Its weight
        is the sum of the weights that checkpoints after each of its updates would have:

            w_j = curve(b_j) / curve(b₀), and 0 from total_steps on
            c_j = w_j - w_{j+1},    c_k = w_k

        This is exact for a linear cooldown to 0 that begins and ends with a block. Otherwise it
        assumes that the mean of the weights hardly moves within a block. In particular, a block in
        which the cooldown begins or ends counts in part, but with the mean of all of its updates. A
        block outside the cooldown has weight 0.

        The time grows with the number of steps at which the curve moves: 0.1 s for a million; with
        `mean_of`, only with the number of checkpoints.

        Source: WSM, Tian et al. 2025 (arXiv:2507.17634).

        Args:
            steps: The number of updates before each checkpoint: increasing integers, at least two,
                or one with `mean_of`. The curve must not rise from the first to the last of them.
            mean_of: If the checkpoints contain means, the number of updates in each block, at least
                1, or a sequence with one number for each checkpoint. Each block begins where the
                one before it ends, the first one at or before the first step of the cooldown, and
                the last one ends at or after `total_steps`. The curve must not rise from the first
                block on.

        Returns:
            An array of dtype float64 and shape (k + 1,) with one weight per checkpoint. No weight
            is negative, and they add up to exactly 1. For consecutive `steps` up to `total_steps`,
            those of the checkpoints and those of blocks of one update have the same bits if the
            curve has not begun to fall before `steps[0]`.

        Raises:
            TypeError: `steps` is not a sequence of integers, or `mean_of` neither an integer nor a
                sequence of integers.
            ValueError: One of these:

                - There are too few steps; one is negative, above 2³¹ - 1, or not above its
                  predecessor.
                - The curve is 0 at its first step here, or rises later.
                - A number in `mean_of` is below 1, or there is not one for each step.
                - Two blocks overlap, or leave a gap.
                - The first block begins within a segment in which the curve falls, or the last one
                  ends before `total_steps`.

        >>> from plateau_jax import StagedCurve
        >>> stable = StagedCurve([(100, 1.0), (900,)])
        >>> branch = stable.cooldown(600, 400, shape="linear")
        >>> branch.merge_weights([600, 700, 800, 900, 1000])
        array([0.12375, 0.25   , 0.25   , 0.25   , 0.12625])
        >>> branch.merge_weights([600, 700, 800, 900, 1000], mean_of=100)
        array([0.  , 0.25, 0.25, 0.25, 0.25])
        """
        if mean_of is None:
            return averaging_weights.weights(self._exact_segments, self, steps)
        return averaging_weights.weights_of_means(self._exact_segments, self, steps, mean_of)

    def same_until(self, other: "AnyCurve", step: int) -> bool:
        """Return True if both curves have the same multiplier at every step below `step`.

        If so, a run that was saved under one of them at or before `step` can resume under the
        other. With a `DataClock` or a hold rule, it must have been saved before `step`, because
        several updates may use one step.

        Two levels are equal if they agree to 60 digits, and different otherwise, even if they round
        to the same float32. Plateaus at the same level are equal, however the curves were written.
        Other segments are equal if they have the same first step, length, shape and levels. For
        step 0 the result is True.

        Args:
            other: The curve to compare with, or a mapping that `from_dict` reads.
            step: The first step that is not compared; at least 0.

        Raises:
            TypeError: `other` is not a curve, `step` not an integer.
            ValueError: A negative step.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> branch = curve.cooldown(500, 100)
        >>> curve.same_until(branch, 500), curve.same_until(branch, 502)
        (True, False)
        """
        step = checks.at_least("step", step, 0)
        difference = self.first_difference(other)
        return difference is None or step <= difference

    def first_difference(self, other: "AnyCurve") -> int | None:
        """Return the largest step for which `same_until` is True; None if it is True for all.

        Args:
            other: The curve to compare with, or a mapping that `from_dict` reads.

        Raises:
            TypeError: `other` is not a curve.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.first_difference(curve.cooldown(500, 100)), curve.first_difference(curve)
        (501, None)
        """
        other = as_curve("other", other)
        for step, after in exact_segments.differences(self._exact_segments, other._exact_segments):
            has_equal_levels = self._level_at(step) == other._level_at(step)
            if not has_equal_levels or self(step) != other(step):
                return step
            # Different segments may agree at their first step: a cooldown starts on the curve that
            # it leaves.
            if after != step + 1:
                return step + 1
        return None

    def _level_at(self, step: int) -> exact.Level:
        return exact.rounded(exact_segments.segment_at(self._exact_segments, step).at(step))

    def describe(self) -> str:
        """Return a table of the segments as text: steps, kind, and level at both ends.

        Empty segments are left out.

        >>> from plateau_jax import PlateauCurve
        >>> print(PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)]).describe())
        first step  last step  kind                 from          to
                 0         99  linear warmup           0           1
               100        549  cosine decay            1    0.308658
               550        729  plateau          0.308658    0.308658
               730        999  cosine decay     0.308658           0
              1000          …  end                     0           0
        """
        return segment_table(self.segments).as_text()

    def plot(self, *, peak_value: float = 1.0, ax: Any = None) -> Any:
        """Plot the learning rate, peak_value · curve(step), against the step. Needs matplotlib.

        Warmup and plateaus are shaded. `plateau_jax.plot` draws several curves into one plot. In a
        script, `matplotlib.pyplot.show()` opens the window.

        Args:
            peak_value: The peak learning rate, by which the curve is multiplied.
            ax: The matplotlib Axes to draw into; the current ones by default. Limits that you set
                are kept.

        Returns:
            The Axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
            TypeError: `peak_value` is not a number.
            ValueError: `peak_value` is negative, not finite, or positive and below 2⁻¹²⁶.

        >>> from plateau_jax import PlateauCurve
        >>> ax = PlateauCurve(1000, warmup_steps=100).plot(peak_value=3e-4)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('step', 'learning rate')
        """
        return axes.draw([self._to_draw()], peak_value, ax)

    def _to_draw(self) -> sampling.CurveToDraw:
        phrases = self._legend_phrases()
        if self._depth == 0:  # derived curves name their last step in a phrase already
            phrases = [checks.plural(self.total_steps, "step"), *phrases]
        return sampling.CurveToDraw(self._exact_segments, self, phrases)

    @abstractmethod
    def _legend_phrases(self) -> list[str]:
        """Describe this curve for a plot's legend, in parts, without its number of steps."""

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a plot and the table of `describe`, without matplotlib."""
        return notebook.html(self._exact_segments, self, type(self).__name__, repr(self))

    def to_dict(self) -> Mapping[str, Any]:
        """Return kind and arguments as plain JSON values."""
        return serialization.curve_to_dict(self)

    def to_source(self, peak_value: float | None = None) -> str:
        """Return the text of a Python file that computes this curve without this library.

        The file defines two functions, which return the same bits as the methods of this class at
        every step, any integer:

            multiplier(step) = curve(step)
            learning_rate(step, peak) = curve.learning_rate(step, peak)

        It contains the table of the curve and a short evaluator, and needs Python 3.9 and nothing
        else. Run as a program, it checks itself, and fails if a bit of a multiplier or of a
        learning rate differs. Use it in a program that must not depend on this library, or for a
        run that must be repeated years from now.

        Args:
            peak_value: The default of the argument `peak` of `learning_rate`: 0, or at least
                2⁻¹²⁶. Without it `peak` has no default.

        Raises:
            TypeError: `peak_value` is not a real scalar.
            ValueError: `peak_value` is negative, not finite, or positive and below 2⁻¹²⁶.

        >>> from plateau_jax import PlateauCurve
        >>> source = PlateauCurve(1000, warmup_steps=100).to_source()
        >>> schedule = {}
        >>> exec(source, schedule)
        >>> schedule["multiplier"](50), schedule["learning_rate"](50, 3e-4)
        (0.5, 0.0001500000071246177)
        """
        if peak_value is not None:
            checks.peak("peak_value", peak_value)
            peak_value = float(peak_value)
        return python_source(
            self.to_dict(),
            self._exact_segments,
            exported_rows(self._python_table),
            self.learning_rate,
            unit=self.unit,
            peak=peak_value,
        )

    def _vector_inputs(self) -> VectorInputs:
        return VectorInputs(self.to_dict(), self._python_table, self.learning_rate)

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """Build the curve that `to_dict` or a configuration file describes.

        Every function that takes a curve takes such a mapping too. If an object has the methods
        `keys` and `to_dict` and is not an array, such as a `ConfigDict` of ml_collections, what its
        `to_dict` returns is read instead.

        `Curve.from_dict` accepts every kind of curve, `PlateauCurve.from_dict` only a
        `PlateauCurve`, and `StagedCurve.from_dict` only a `StagedCurve`.

        A mapping without the key `"kind"` is a `StagedCurve` if it has the key `"stages"`, else a
        `PlateauCurve`. Sequences may be lists or tuples, and OmegaConf's containers are accepted.
        Numbers may be strings: YAML reads `1e-4` as a string, and a command line passes only
        strings. Numbers of steps, samples and tokens may end in a letter: `"10k"`, `"1.5M"` or
        `"2B"`. As in the constructors, lengths may be percentages; in the stages of a mapping with
        `"total_steps"`, one may be `"rest"`.

        Args:
            arguments: The arguments of the constructor, as `to_dict` returns them or as a YAML,
                TOML or JSON file contains them. An argument that is left out has its default.

        Raises:
            TypeError: `arguments` is not a mapping, a value has the wrong type, or a key without a
                default is missing, such as `total_steps`.
            ValueError: The kind is unknown, or is not the kind of this class. A key is unknown.
                Derived curves are nested more than 64 deep. The constructor rejects a value.
                Messages name the value by its path, as in `curve.stages[1].to`.

        Warns:
            CurveWarning: As the constructor; but never if the keys are exactly those that `to_dict`
                writes.

        >>> from plateau_jax import Curve, PlateauCurve
        >>> curve = PlateauCurve(1000).cooldown(500, 100)
        >>> Curve.from_dict(curve.to_dict()) == curve
        True
        >>> stages = [["2%", 1.0], ["rest"], ["20%", 0.0, "1-sqrt"]]  # as in a YAML file
        >>> Curve.from_dict({"total_steps": 10_000, "stages": stages})([100, 200, 8000, 10_000])
        array([0.5, 1. , 1. , 0. ], dtype=float32)
        """
        return serialization.curve_from_dict(cls, arguments)

    def __getstate__(self) -> dict[str, Any]:
        # Pickles and copies contain only the arguments, from which the rest is computed. They are
        # plain values, so `torch.load(weights_only=True)` needs to allow no other class.
        return serialization.plain_arguments_of(self)


def _evaluate_one(curve: Curve, step: int) -> float:
    return evaluate(PYTHON, curve._python_table, step)


# torch.compile calls a function with this mark while it traces, and takes its result as a constant.
# It could not trace how a table is built.
_evaluate_one.__dict__["_dynamo_marked_constant"] = True


class _ProtectedDict(dict[str, Any]):
    """The `__dict__` of a curve, protected from torch's LambdaLR."""

    # `LambdaLR(optimizer, curve)` puts `curve.__dict__.copy()` into its state, and restores a state
    # with `curve.__dict__.update`. With a plain dict, tables would end up in checkpoints, and
    # loading one would silently replace this frozen curve by the saved one.

    def copy(self) -> dict[str, Any]:
        return {}

    def update(self, *_: Any, **__: Any) -> None:
        pass


AnyCurve = Curve | Mapping[str, Any]
"""The type of an argument that is a curve, or a mapping that `Curve.from_dict` reads."""


def as_curve(path: checks.Path | str, value: Any) -> Curve:
    """Return a curve as it is, and build the curve that a mapping describes.

    Raises:
        TypeError: The value is neither; or as `Curve.from_dict`, with the path of the value.
    """
    if isinstance(value, Curve):
        return value
    value = checks.unwrap_config(value)
    if not isinstance(value, Mapping):
        raise TypeError(checks.must(path, value, "be a Curve"))
    if isinstance(path, str):
        path = (path,)
    return serialization.curve_from_dict(Curve, value, path)


def as_curves(path: checks.Path | str, value: Any) -> Curve | Sequence[Curve]:
    """Build the curve that a mapping describes, also within sequences of any depth.

    Return every other value as it is: the caller checks it.
    """
    value = checks.unwrap_config(value)
    if isinstance(value, Mapping):
        return as_curve(path, cast("Mapping[str, Any]", value))
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return cast("Any", value)
    if isinstance(path, str):
        path = (path,)
    curves: list[Any] = []
    for index, item in enumerate(cast("Sequence[Any]", value)):
        curves.append(as_curves((*path, index), item))
    return curves


def stack(curves: Iterable[AnyCurve]) -> Table:
    """Stack the tables of several curves for `vmap`: each array has a leading axis of curves.

    A shorter table repeats its last row and piece, which changes no value.

    Args:
        curves: At least one curve, or mapping that `Curve.from_dict` reads. A step is an update,
            or, for curves from `BatchPlan.scale`, their unit of samples or tokens: stack only
            curves whose steps mean the same.

    Returns:
        One table, a pytree of int32 arrays.

    Raises:
        TypeError: `curves` is a single curve, or has no order (a set), or contains something that
            is not a `Curve`.
        ValueError: `curves` is empty.

    >>> from plateau_jax import PlateauCurve, stack
    >>> table = stack([PlateauCurve(100), PlateauCurve(100, plateaus=[(50, 30)])])
    >>> table.begin.shape
    (2, 16)
    """
    if not checks.is_ordered(curves):
        raise TypeError(checks.must("curves", curves, "be several Curves, in order"))
    tables = [as_curve(("curves", index), curve).table for index, curve in enumerate(curves)]
    if not tables:
        raise ValueError("curves is empty; stack needs at least one Curve")
    return evaluation.stack_tables(tables)


def check_unit(curve: Curve, unit: int) -> None:
    """Raise a ValueError if the curve follows a batch plan in a different unit."""
    if curve.unit is not None and unit != curve.unit:
        expected = f"be {curve.unit}, the unit of the curve, which follows a batch plan"
        raise ValueError(checks.must("unit", unit, expected))
