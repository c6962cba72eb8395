"""What every curve is: rows in exact numbers, one table made of them, one evaluator."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, Literal, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax import checks, exact, fixed_point, levels, rows, segments
from plateau_jax.checks import MAX_STEP
from plateau_jax.curve_warning import silent
from plateau_jax.namespace import Namespace
from plateau_jax.rows import Row
from plateau_jax.segments import Numbers, Segments

CHUNK = 3072
"""Steps that NumPy computes in one go. Temporaries are then of 24 KiB: from 32 KiB on the allocator was
seen to give their pages back to the system and to fault them in again, at twice the time a step."""

MAX_DEPTH = 64
"""How deep cooldowns and continuations may be nested."""

StageShape = Literal["linear", "cosine", "1-sqrt", "exponential"]


class Curve(ABC):
    """A learning-rate curve. Called with a step, it is a multiplier in [0, 1].

        rate(step) = peak · curve(step)

    `PlateauCurve` and `StagedCurve` describe one; `cooldown` and `then` make another of it. Curves are
    frozen; those of the same kind and arguments are equal, have the same hash, and a `repr` that
    evaluates to the curve.

    Every value is a float32 that lies within half a unit in the last place, plus 2⁻⁵⁸, of the exact
    curve, and has the same bits in NumPy, JAX and PyTorch. Where a segment starts, and all along one
    that holds its level, it is the float32 nearest to the exact level; within a segment it never moves
    against the segment's direction.

    >>> from plateau_jax import Curve, PlateauCurve
    >>> curve: Curve = PlateauCurve(1000, warmup_steps=100)
    >>> 3e-4 * curve(50)
    0.00015
    >>> curve([0, 50, 100, 1000])
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    total_steps: int
    """Steps of the whole curve. From there on the last level is held; before step 0, the first."""

    rows: tuple[Row, ...]
    """The segments in exact numbers, the end as the last."""

    depth: int
    """How deep cooldowns and continuations are nested in this curve."""

    def _freeze(self, rows: Iterable[Row], *, depth: int = 0, **arguments: Any) -> None:
        """Set what a curve consists of, once its arguments are valid."""
        rows = tuple(rows)
        values = {**arguments, "rows": rows, "depth": depth, "total_steps": rows[-1].begin}
        object.__setattr__(self, "__dict__", Namespace(vars(self) | values))
        # Here and not in the first call: a compiler that traces the call, as torch's does, meets
        # finished tables.
        _ = self._numbers

    @cached_property
    def segments(self) -> Segments:
        """The curve as a table of read-only int32 arrays, a row a segment."""
        return segments.table(self.rows)

    @cached_property
    def flat_starts(self) -> tuple[int, ...]:
        """The first step of each flat part: a maximal run of steps below `total_steps` held at one level."""
        return tuple(rows.flat_starts(self.rows))

    @cached_property
    def _numbers(self) -> tuple[list[int], list[Numbers]]:
        """The first step of each row, and each row, as Python numbers."""
        return segments.python_numbers(self.segments)

    @overload
    def __call__(self, step: int | np.integer[Any]) -> float: ...
    @overload
    def __call__(self, step: NDArray[Any] | Sequence[Any]) -> NDArray[np.float32]: ...
    def __call__(self, step: Any) -> Any:
        """The multiplier at each step.

        Args:
            step: An integer of any size, or an array of integers of any shape and dtype.

        Returns:
            A value in [0, 1] of float32: for a single integer, Python's or NumPy's, as a Python float;
            for anything else as an array of the same shape, or, of no dimensions, as a NumPy scalar.

        Raises:
            TypeError: A step that is not an integer: bool, float (3.0 too), str. An array of JAX: there
                `optax_schedule` and `multiplier` evaluate the curve.
        """
        if type(step) is int:
            # torch's compiler gives an int a name that stands for many; its index is the number itself.
            return fixed_point.evaluate_one(*self._numbers, min(max(operator.index(step), 0), MAX_STEP))
        steps = checks.steps(step)
        if isinstance(step, int | np.integer):
            return self(int(steps))
        flat = steps.ravel()
        multipliers: Any = np.empty(flat.shape, np.float32)
        for first in range(0, flat.size, CHUNK):
            part = slice(first, first + CHUNK)
            index = self.segments.begin.searchsorted(flat[part], side="right") - 1
            multipliers[part] = fixed_point.evaluate(np, self.segments, index, flat[part])
        return multipliers.reshape(steps.shape)[()]

    def cooldown(self, at: int, steps: int, *, to: float = 0.0, shape: StageShape = "1-sqrt") -> "Curve":
        """This curve before step `at`, bit for bit, then from its exact level there to `to`, within `steps`.

        With a the level at `at`, b = `to` and x = (step - at)/steps, the level is

            "1-sqrt"         a + (b - a)·√x
            "linear"         a + (b - a)·x
            "cosine"         a + (b - a)·(1 - cos πx)/2
            "exponential"    a^(1-x)·b^x

        The past is the same, so the checkpoint of a run under this curve goes on under the new one: see
        `same_until`.

        Sources: cooldowns off a constant rate, and 1-sqrt, Hägele et al. 2024 (arXiv:2405.18392); linear
        to 0, Defazio et al. 2023 (arXiv:2310.07831).

        Args:
            at: First step of the cooldown; it may lie anywhere, past `total_steps` too.
            steps: Its steps, at least 1.
            to: Its last level, not above the level at `at`.
            shape: `"linear"`, `"cosine"`, `"1-sqrt"` or `"exponential"`.

        Returns:
            A curve of `at + steps` steps.

        Raises:
            TypeError: `at` or `steps` is not an integer, `to` not a number.
            ValueError: A value out of its range; an exponential cooldown to 0; cooldowns and
                continuations nested more than 64 deep.

        >>> from plateau_jax import PlateauCurve
        >>> stable = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 90)])
        >>> branch = stable.cooldown(4000, 1000)
        >>> branch([3999, 4000, 4250, 5000]), branch.total_steps
        (array([1. , 1. , 0.5, 0. ], dtype=float32), 5000)
        """
        from plateau_jax.branches import Cooldown  # it is a Curve

        return Cooldown(self, at, steps, to=to, shape=shape)

    def then(self, other: "Curve", *, scale: float = 1.0) -> "Curve":
        """This curve for its `total_steps`, then `other` from its step 0 on, all its levels times `scale`.

            curve(step)                          for step < total_steps
            scale · other(step - total_steps)    after that

        For restarts, extensions, a second phase of training. Source of restarts: SGDR, Loshchilov & Hutter
        2017 (arXiv:1608.03983).

        Args:
            other: The curve that follows.
            scale: What its levels are multiplied by, above 0 and at most 1.

        Returns:
            A curve of the steps of both.

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
        from plateau_jax.branches import Then  # it is a Curve

        return Then(self, other, scale=scale)

    def same_until(self, other: "Curve", step: int) -> bool:
        """Whether both curves give the same float32 at every step below `step`.

        It is decided from the segments in exact numbers: True is a proof. Levels that differ count as
        different, even where they have one float32. What holds one level is the same however it was
        described; of segments that move, the same ones begin at the same step and have the same length,
        shape and levels. For step 0 it is True.

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
        """The largest step up to which `same_until` is True; None where it is for every step.

        Args:
            other: The curve to compare with.

        Raises:
            TypeError: `other` is not a curve.

        >>> from plateau_jax import PlateauCurve
        >>> curve = PlateauCurve(1000, warmup_steps=100)
        >>> curve.first_difference(curve.cooldown(500, 100)), curve.first_difference(curve)
        (501, None)
        """
        other = checked("other", other)
        for step, after in rows.differences(self.rows, other.rows):
            # Segments of two kinds may meet in one point, as a cooldown meets the segment that it leaves.
            if self._level(step) != other._level(step) or self(step) != other(step):
                return step
            if after != step + 1:
                return step + 1
        return None

    def _level(self, step: int) -> levels.Level:
        return rows.row_at(self.rows, step).at(step)

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
        table = self._table()
        width = max(13, *(len(kind) for _, _, kind, _, _ in table))
        return "\n".join(
            f"{first:>10} {last:>10}  {kind:{width}} {start:>11} {end:>11}"
            for first, last, kind, start, end in table
        )

    def _table(self) -> list[tuple[str, str, str, str, str]]:
        """What `describe` shows: a header, and a row a segment that is not empty."""
        found = [("first step", "last step", "kind", "from", "to")]
        for row, after in rows.visible(self.rows):
            kind = row.kind if row.shape is None else f"{row.shape} {row.kind}"
            last = "…" if after is None else str(after - 1)
            end = row.start if after is None else row.at(after)
            found.append((str(row.begin), last, kind, _shown(row.start), _shown(end)))
        return found

    def _repr_html_(self) -> str:
        """The curve as notebooks show it: a picture, and the table of `describe`. Needs no matplotlib."""
        from plateau_jax.notebook import html  # it draws Curves

        return html(self)

    @abstractmethod
    def to_dict(self) -> Mapping[str, Any]:
        """All arguments, as plain JSON values: numbers, strings, lists and dictionaries."""

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """The curve that `to_dict` wrote, of its kind.

        Args:
            arguments: What `to_dict` returned, or what JSON made of it.

        Raises:
            TypeError: `arguments` is not a mapping.
            ValueError: An unknown kind, or one that is not this class's; a key that is missing or
                unknown; cooldowns and continuations nested more than 64 deep; else as the constructor.

        >>> from plateau_jax import Curve, PlateauCurve
        >>> curve = PlateauCurve(1000).cooldown(500, 100)
        >>> Curve.from_dict(curve.to_dict()) == curve
        True
        """
        from plateau_jax.kinds import from_dict  # they are Curves

        with silent():
            curve = from_dict(cls, arguments)
        if not isinstance(curve, cls):
            raise ValueError(f"these are the arguments of a {type(curve).__name__}, not of a {cls.__name__}")
        return curve

    def __reduce__(self) -> tuple[Any, ...]:
        # Rows and tables are left out of pickles and copies: they follow from the arguments.
        arguments = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))}
        return partial(_again, type(self), **arguments), ()


def _again(kind: type[Curve], /, **arguments: Any) -> Curve:
    """A curve that was constructed before."""
    with silent():
        return kind(**arguments)


def _shown(level: levels.Level) -> str:
    return f"{exact.nearest_float32(levels.bits(level)):.6g}"


def checked(name: str, value: Any) -> Curve:
    """The value, which must be a curve."""
    if not isinstance(value, Curve):
        raise TypeError(f"{name} = {value!r} must be a Curve")
    return value
