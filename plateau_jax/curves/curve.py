"""What every curve is and can do."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax.curves import averaging_weights, serialization
from plateau_jax.drawing import axes, notebook, sampling
from plateau_jax.numerics import exact_segments, fixed_point, levels, segments
from plateau_jax.numerics.arithmetic import NUMPY, DecodedSegments
from plateau_jax.numerics.exact_segments import ExactSegment
from plateau_jax.numerics.segments import Segments
from plateau_jax.validation import checks
from plateau_jax.validation.checks import MAX_STEP


class Curve(ABC):
    """A learning-rate curve. Called with a step, it is a multiplier in [0, 1].

        rate(step) = peak · curve(step)

    Write a curve as a `PlateauCurve` or a `StagedCurve`; `cooldown` and `then` make a new curve from it.
    Curves are frozen. Curves of one class with the same arguments are equal and have the same hash. The
    `repr` of a curve is the Python expression that makes it.

    Every value is a float32 with the same bits in NumPy, JAX and PyTorch. It differs from the exact curve by
    at most half a unit in the last place plus 2⁻⁵⁸. At the first step of a segment, and all along a segment
    that holds its level, it is the float32 nearest to the exact level. Within a falling segment no value is
    higher than an earlier one; within a rising segment none is lower.

    >>> from plateau_jax import Curve, PlateauCurve
    >>> curve: Curve = PlateauCurve(1000, warmup_steps=100)
    >>> 3e-4 * curve(50)
    0.00015
    >>> curve([0, 50, 100, 1000])
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    total_steps: int
    """Steps of the whole curve. From this step on the last level is held; before step 0, the first."""

    rows: tuple[ExactSegment, ...]
    """The segments in exact numbers; the last one is the end."""

    depth: int
    """How deep cooldowns and continuations are nested in this curve."""

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the arguments, and `_freeze` them with the rows that they describe."""

    def _freeze(self, rows: Iterable[ExactSegment], *, depth: int = 0, **arguments: Any) -> None:
        """Set what a curve consists of, once its arguments are valid."""
        rows = tuple(rows)
        values = {**arguments, "rows": rows, "depth": depth, "total_steps": rows[-1].begin}
        object.__setattr__(self, "__dict__", _Attributes(vars(self)))
        for name, value in values.items():  # a derived class may have slots for them
            object.__setattr__(self, name, value)
        # The tables are made here and not in the first call, so that a compiler that traces a call, such as
        # torch's, finds them finished.
        _ = self._decoded_rows

    @cached_property
    def segments(self) -> Segments:
        """The curve as a table of read-only int32 arrays, a row a segment."""
        return segments.encode_table(self.rows)

    @cached_property
    def _decoded(self) -> DecodedSegments:
        """The table's columns with their words joined."""
        return segments.decode_table(NUMPY, self.segments)

    @cached_property
    def flat_starts(self) -> tuple[int, ...]:
        """The first step of each flat part: a maximal run of steps below `total_steps` held at one level."""
        return tuple(exact_segments.flat_starts(self.rows))

    @cached_property
    def _decoded_rows(self) -> tuple[list[int], list[DecodedSegments]]:
        """The first step of each row, and each row, as Python numbers."""
        return segments.python_rows(self._decoded)

    @overload
    def __call__(self, step: int | np.integer[Any]) -> float: ...
    @overload
    def __call__(self, step: NDArray[Any] | Sequence[Any]) -> NDArray[np.float32]: ...
    def __call__(self, step: Any) -> Any:
        """The multiplier at each step.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.

        Returns:
            Values in [0, 1] of dtype float32: a Python float for a single integer, Python's or NumPy's; a
            NumPy scalar for an array of no dimensions; else an array of the same shape.

        Raises:
            TypeError: A step is not an integer (a bool, a float such as 3.0, a str), or is an array of JAX:
                in JAX `optax_schedule` and `multiplier` evaluate the curve.
        """
        if type(step) is int:
            # torch's compiler may trace an int as a symbol for any number; its index is this very number.
            return fixed_point.evaluate_one(*self._decoded_rows, min(max(operator.index(step), 0), MAX_STEP))
        steps = checks.steps(step)
        if isinstance(step, int | np.integer):
            return self(int(steps))
        return fixed_point.evaluate_many(self._decoded, steps)[()]

    def cooldown(self, at: int, steps: int, *, to: float = 0.0, shape: str = "1-sqrt") -> "Curve":
        """This curve before step `at`; from there on it goes to the level `to` within `steps` steps.

        Use it to end a long run early, or to branch finished models off a run that goes on. Before step `at`
        both curves have the same bits. So save a checkpoint at or before step `at`, and load it under the new
        curve (`same_until` is the check).

        With the exact level a at step `at`, b = `to` and x = (step - at)/steps, the cooldown's level is

            "1-sqrt"         a + (b - a)·√x
            "linear"         a + (b - a)·x
            "cosine"         a + (b - a)·(1 - cos πx)/2
            "exponential"    a^(1-x)·b^x
            "1-x^P"          a + (b - a)·x^P
            "(1-x)^P"        b + (a - b)·(1-x)^P
            "t^-P"           t^(-P), t = a^(-1/P)·(1-x) + b^(-1/P)·x

        Write a decimal for P, as in `"1-x^2"`; `StagedCurve` says which.

        Sources: cooldowns from a constant rate, and 1-sqrt, Hägele et al. 2024 (arXiv:2405.18392); linear
        to 0, Defazio et al. 2023 (arXiv:2310.07831).

        Args:
            at: First step of the cooldown, at least 0; it may lie past `total_steps`.
            steps: Steps of the cooldown, at least 1.
            to: The level at the end of the cooldown, not above the level at step `at`.
            shape: `"linear"`, `"cosine"`, `"1-sqrt"`, `"exponential"`, `"1-x^P"`, `"(1-x)^P"` or `"t^-P"`.

        Returns:
            A curve of `at + steps` steps.

        Raises:
            TypeError: `at` or `steps` is not an integer, `to` not a number.
            ValueError: A value out of its range; an unknown shape; an exponential or `"t^-P"` cooldown to 0;
                a `"t^-P"` cooldown between levels too far apart; cooldowns and continuations nested more
                than 64 deep.

        >>> from plateau_jax import PlateauCurve
        >>> stable = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 90)])
        >>> branch = stable.cooldown(4000, 1000)
        >>> branch([3999, 4000, 4250, 5000]), branch.total_steps
        (array([1. , 1. , 0.5, 0. ], dtype=float32), 5000)
        """
        return serialization.curve_class("cooldown")(self, at, steps, to=to, shape=shape)

    def then(self, other: "Curve", *, scale: float = 1.0) -> "Curve":
        """A curve that follows this one to its end, and then `other` from its step 0, times `scale`.

            curve(step)                          for step < total_steps
            scale · other(step - total_steps)    after that

        Use it for restarts, for a longer run, or for a second phase of training. Source of restarts: SGDR,
        Loshchilov & Hutter 2017 (arXiv:1608.03983).

        Args:
            other: The curve that follows.
            scale: What the levels of `other` are multiplied by, above 0 and at most 1.

        Returns:
            A curve of `self.total_steps + other.total_steps` steps.

        Raises:
            TypeError: `other` is not a curve, `scale` not a number.
            ValueError: A `scale` outside (0, 1]; more than 2³¹ - 1 steps in all; cooldowns and
                continuations nested more than 64 deep.

        >>> from plateau_jax import PlateauCurve
        >>> cycle = PlateauCurve(100, warmup_steps=10)
        >>> restarted = cycle.then(cycle, scale=0.5)
        >>> restarted([10, 100, 110, 200]), restarted.total_steps
        (array([1. , 0. , 0.5, 0. ], dtype=float32), 200)
        """
        return serialization.curve_class("then")(self, other, scale=scale)

    def merge_weights(self, steps: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """The weights of checkpoints of a constant rate whose mean takes the place of a cooldown.

        You train on at the level of step `steps[0]`, and take checkpoints θ₀, …, θ_k after `steps` updates.
        The mean Σ c_j θ_j is where this curve would have led:

            w_j = mean of curve(steps[j-1]), …, curve(steps[j] - 1), over curve(steps[0])
            c₀ = 1 - w₁,    c_j = w_j - w_{j+1},    c_k = w_k

        With plain SGD, the same gradients and a checkpoint after every update this is exact. With fewer
        checkpoints or another optimizer it is close to a cooldown. Whether its loss is as low depends on the
        training: compare both once. `torch_bridge.Checkpoints.merge` takes the mean of saved models.

        The time grows with the number of steps at which the curve moves: 0.1 s for a million.

        Source: WSM, Tian et al. 2025 (arXiv:2507.17634).

        Args:
            steps: The number of updates before each checkpoint: rising integers, at least two. From the first
                to the last of them the curve must not rise.

        Returns:
            An array of dtype float64 and of shape (k + 1,): a weight for each checkpoint. No weight is
            negative, and they add up to exactly 1.

        Raises:
            TypeError: `steps` is not a sequence of integers.
            ValueError: There are fewer than two steps; one is negative, above 2³¹ - 1, or not above the one
                before; the curve is 0 at `steps[0]`, or rises between `steps[0]` and `steps[-1]`.

        >>> from plateau_jax import StagedCurve
        >>> stable = StagedCurve([(100, 1.0), (900,)])
        >>> stable.cooldown(600, 400, shape="linear").merge_weights([600, 700, 800, 900, 1000])
        array([0.12375, 0.25   , 0.25   , 0.25   , 0.12625])
        """
        return averaging_weights.weights(self.rows, self, steps)

    def same_until(self, other: "Curve", step: int) -> bool:
        """Whether both curves give the same float32 at every step below `step`.

        If they do, a run that was saved under one of them, up to `step`, can go on under the other.

        The segments are compared in exact numbers, so True is a proof. Levels that differ exactly count as
        different, even where both round to one float32. Segments that hold one level are the same,
        however they were described. Segments that move are the same if they have the same first step, length,
        shape and levels. For step 0 the answer is True.

        Args:
            other: The curve to compare with.
            step: The first step that is not compared, at least 0.

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

    def first_difference(self, other: "Curve") -> int | None:
        """The largest step for which `same_until` is True; None if it is True for every step.

        Args:
            other: The curve to compare with.

        Raises:
            TypeError: `other` is not a curve.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.first_difference(curve.cooldown(500, 100)), curve.first_difference(curve)
        (501, None)
        """
        other = check_curve("other", other)
        for step, after in exact_segments.differences(self.rows, other.rows):
            # Different segments may share a level: a cooldown begins at one of the segment that it leaves.
            if self._level_at(step) != other._level_at(step) or self(step) != other(step):
                return step
            if after != step + 1:
                return step + 1
        return None

    def _level_at(self, step: int) -> levels.Level:
        return exact_segments.segment_at(self.rows, step).at(step)

    def describe(self) -> str:
        """A readable table of the segments that are not empty: steps, kind, and level at both ends.

        >>> from plateau_jax import PlateauCurve
        >>> print(PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)]).describe())
        first step  last step  kind                 from          to
                 0         99  linear warmup           0           1
               100        549  cosine decay            1    0.308658
               550        729  plateau          0.308658    0.308658
               730        999  cosine decay     0.308658           0
              1000          …  end                     0           0
        """
        return exact_segments.as_text(self.rows)

    def plot(self, *, peak_value: float = 1.0, ax: Any = None) -> Any:
        """Draw the learning rates, peak_value · curve(step), against the step. Needs matplotlib.

        Warmup and plateaus are shaded. `plateau_jax.plot` draws several curves into one picture. In a script
        `matplotlib.pyplot.show()` opens the window.

        Args:
            peak_value: The peak learning rate that the curve is multiplied by.
            ax: The matplotlib Axes to draw into; the current ones by default. Limits that were set stay.

        Returns:
            The Axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed, and no Axes were given.
            TypeError: `peak_value` is not a number.
            ValueError: A `peak_value` that is negative, not finite, or positive and below 2⁻¹²⁶.

        >>> from plateau_jax import PlateauCurve
        >>> ax = PlateauCurve(1000, warmup_steps=100).plot(peak_value=3e-4)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('step', 'learning rate')
        """
        return axes.draw([self._to_draw()], peak_value, ax)

    def _to_draw(self) -> sampling.CurveToDraw:
        """What a picture needs of this curve."""
        # The other phrases of a cooldown, or of a continuation, say where it ends.
        length = [] if self.depth else [f"{self.total_steps} steps"]
        return sampling.CurveToDraw(self.rows, self, [*length, *self._legend_phrases()])

    def _legend_phrases(self) -> list[str]:
        """What the legend of a picture says of this curve, in parts, without its number of steps."""
        return [type(self).__name__]

    def _repr_html_(self) -> str:
        """The curve as notebooks show it: a picture, and the table of `describe`. Needs no matplotlib."""
        return notebook.html(self.rows, self, type(self).__name__, repr(self))

    def to_dict(self) -> Mapping[str, Any]:
        """The kind and all arguments, as plain JSON values: numbers, strings, lists and dictionaries.

        Fields that a derived dataclass adds stand in a mapping of their own, `"derived"`, as they are.
        """
        return serialization.curve_to_dict(self)

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """The curve that `to_dict` wrote.

        `Curve.from_dict` reads what any curve wrote. `PlateauCurve.from_dict` reads a `PlateauCurve` only,
        and `StagedCurve.from_dict` a `StagedCurve` only. A class that you derive from one of them reads the
        same, and returns an object of your class.

        Args:
            arguments: What `to_dict` returned, also after a way through JSON. An argument that is left out
                has its default.

        Raises:
            TypeError: `arguments` is not a mapping.
            ValueError: The kind is unknown, or is not the kind of this class. A key is unknown. A key without
                a default is missing, such as `total_steps`, or a field that a derived class adds. Cooldowns
                and continuations are nested more than 64 deep. What the constructor refuses.

        >>> from plateau_jax import Curve, PlateauCurve
        >>> curve = PlateauCurve(1000).cooldown(500, 100)
        >>> Curve.from_dict(curve.to_dict()) == curve
        True
        """
        return serialization.curve_from_dict(cls, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rows and tables are left out of pickles and copies: they follow from the arguments.
        values = {name: value for name, value in vars(self).items() if name not in _FOLLOWING}
        arguments = {name: getattr(self, name) for name in serialization.field_names(type(self))}
        return partial(serialization.rebuild_curve, type(self), values | arguments), ()


class _Attributes(dict[str, Any]):
    """The `__dict__` of a curve, out of reach of torch's LambdaLR.

    `LambdaLR(optimizer, curve)` saves `curve.__dict__.copy()`, and loads what it saved by
    `curve.__dict__.update`. So tables would go into checkpoints, and a saved curve would be written over a
    frozen one. Here `copy` returns nothing and `update` changes nothing.
    """

    def copy(self) -> dict[str, Any]:
        return {}

    def update(self, *_: Any, **__: Any) -> None:
        pass


_FOLLOWING = {"rows", "depth", "total_steps", "segments", "flat_starts", "_decoded", "_decoded_rows"}
"""The attributes that `_freeze` sets beside the arguments, and that are computed from them."""


def check_curve(name: str, value: Any) -> Curve:
    """The value, which must be a curve."""
    if not isinstance(value, Curve):
        raise TypeError(f"{name} = {checks.short_repr(value)} must be a Curve")
    return value
