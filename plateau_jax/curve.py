"""What the user wrote: one frozen, validated description of a learning-rate curve."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from plateau_jax import checks, exact, fixed_point, segments
from plateau_jax.checks import MAX_STEP, integer, one_of, ratio
from plateau_jax.namespace import Namespace
from plateau_jax.plateaus import percentages, placed, step_counts
from plateau_jax.segments import Numbers, Row, Segments

CHUNK = 3072
"""Steps that NumPy computes in one go. Temporaries are then of 24 KiB: from 32 KiB on the allocator was
seen to give their pages back to the system and to fault them in again, at twice the time a step."""

Shape = Literal["linear", "cosine"]


class CurveArguments(TypedDict):
    """The arguments of a `PlateauCurve`, as plain JSON values."""

    total_steps: int
    warmup_steps: int
    plateaus: list[list[float]]
    absolute_plateaus: list[list[int]]
    min_lr_ratio: float
    init_lr_ratio: float
    warmup: Shape
    decay: Shape


@dataclass(frozen=True)
class PlateauCurve:
    """A learning-rate curve: warmup, cosine decay, plateaus. Called with a step, it is a multiplier.

    With W = `warmup_steps`, N = `total_steps` - W, r = `min_lr_ratio` and i = `init_lr_ratio`:

    - Warmup, step < W: i + (1 - i)·step/W, or, for `warmup="cosine"`, i + (1 - i)·(1 - cos(π·step/W))/2.
    - A plateau (p, d) starts floor(N·p/100) steps after the warmup and lasts floor(N·d/100) steps.
      With starts sₙ, lengths lₙ and E = N - Σ lₙ decaying steps, its level is that of one cosine over
      the whole decay, taken at its start with the time of earlier plateaus left out:
      r + (1 - r)·(1 + cos(π·(sₙ - l₁ - … - lₙ₋₁)/E))/2.
    - Between two levels a → b, over L steps, an independent half cosine: b + (a - b)·(1 + cos(πj/L))/2.
    - From `total_steps` on: r. Before step 0: the value at 0.

    For `decay="linear"` the cosines of the decay become straight lines, 1 - x in place of
    (1 + cos πx)/2. Without warmup `init_lr_ratio` has no effect. Warmup-stable-decay is a plateau at
    0 %: `PlateauCurve(total, warmup_steps=w, plateaus=[(0, 80)])`.

    Sources: linear warmup, Goyal et al. 2017 (arXiv:1706.02677); half a cosine for the decay, SGDR,
    Loshchilov & Hutter 2017 (arXiv:1608.03983); warmup-stable-decay, MiniCPM, Hu et al. 2024
    (arXiv:2404.06395).

    Every percentage and ratio is read as the decimal that it prints as: 32.3 % of 1000 is 323.

    Args:
        total_steps: Number of steps of the whole curve, warmup included; 1 to 2³¹ - 1.
        warmup_steps: Steps from `init_lr_ratio` to 1, below `total_steps`. Step `warmup_steps` is the peak.
        plateaus: Pairs (start, duration) in percent, 0 to 100, of the steps after the warmup.
        absolute_plateaus: Pairs (first step, number of steps), in the count of steps that the curve
            is called with. May be given beside `plateaus`.
        min_lr_ratio: The value at the end, 0 to 1.
        init_lr_ratio: The value at step 0 if there is a warmup, 0 to 1.
        warmup: `"linear"` or `"cosine"`.
        decay: `"cosine"` or `"linear"`.

    Raises:
        TypeError: A number of steps that is not an integer, a ratio or percentage that is not a
            number, a plateau that is not a pair.
        ValueError: A value out of its range; plateaus that overlap, run past the end or leave no
            step to decay; an unknown shape.

    >>> curve = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)
    >>> curve(100), curve(1000)
    (1.0, 0.10000000149011612)
    >>> curve([0, 50, 550, 700, 5000])
    array([0.        , 0.5       , 0.37779245, 0.37779245, 0.1       ],
          dtype=float32)
    """

    total_steps: int
    _: KW_ONLY
    warmup_steps: int = 0
    plateaus: Sequence[tuple[float, float]] = ()
    absolute_plateaus: Sequence[tuple[int, int]] = ()
    min_lr_ratio: float = 0.0
    init_lr_ratio: float = 0.0
    warmup: Shape = "linear"
    decay: Shape = "cosine"

    def __post_init__(self) -> None:
        total = integer("total_steps", self.total_steps)
        if not 1 <= total <= MAX_STEP:
            raise ValueError(f"total_steps = {total} must lie in 1 … 2**31 - 1 = {MAX_STEP}")
        warmup = integer("warmup_steps", self.warmup_steps)
        if not 0 <= warmup < total:
            raise ValueError(
                f"warmup_steps = {warmup} must lie in 0 … total_steps - 1 = {total - 1}, "
                "so that a step is left to decay"
            )
        normal = {
            "total_steps": total,
            "warmup_steps": warmup,
            "plateaus": percentages(self.plateaus),
            "absolute_plateaus": step_counts(self.absolute_plateaus, warmup),
            "min_lr_ratio": ratio("min_lr_ratio", self.min_lr_ratio),
            "init_lr_ratio": ratio("init_lr_ratio", self.init_lr_ratio),
            "warmup": one_of("warmup", self.warmup, ("linear", "cosine")),
            "decay": one_of("decay", self.decay, ("cosine", "linear")),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "__dict__", Namespace(vars(self)))
        # Here and not in the first call: plateaus that do not fit are refused, and a compiler that traces
        # the call, as torch's does, meets finished tables.
        _ = self._numbers

    @cached_property
    def _plateaus(self) -> list[tuple[int, int]]:
        """(first step, number of steps) of each plateau, in order."""
        return placed(
            self.total_steps, self.warmup_steps, tuple(self.plateaus), tuple(self.absolute_plateaus)
        )

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The segments in exact numbers."""
        return tuple(
            segments.rows(
                total_steps=self.total_steps,
                warmup_steps=self.warmup_steps,
                plateaus=self._plateaus,
                min_level=exact.from_decimal(self.min_lr_ratio),
                init_level=exact.from_decimal(self.init_lr_ratio),
                warmup=self.warmup,
                decay=self.decay,
            )
        )

    @cached_property
    def segments(self) -> Segments:
        """The curve as a table of read-only int32 arrays, a row a segment."""
        return segments.table(self.rows)

    @cached_property
    def _numbers(self) -> tuple[list[int], list[Numbers]]:
        """The first step of each row, and each row, as Python numbers."""
        columns = segments.joined(self.segments)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return columns.begin.tolist(), [Numbers(*row) for row in rows]

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

    def describe(self) -> str:
        """A readable table of the segments that are not empty: steps, kind, and level at both ends.

        >>> print(PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)]).describe())
        first step  last step  kind                 from          to
                 0         99  linear warmup           0           1
               100        549  cosine decay            1    0.308658
               550        729  plateau          0.308658    0.308658
               730        999  cosine decay     0.308658           0
              1000          …  end                     0           0
        """
        lines = ["first step  last step  kind                 from          to"]
        ends = [str(after.begin - 1) for after in self.rows[1:]] + ["…"]
        for row, last in zip(self.rows, ends, strict=True):
            if last != "…" and int(last) < row.begin:
                continue
            kind = row.kind if row.flat else f"{row.shape} {row.kind}"
            levels = [f"{exact.nearest_float32(level):11.6g}" for level in (row.start, row.end)]
            lines.append(f"{row.begin:>10} {last:>10}  {kind:13} {' '.join(levels)}")
        return "\n".join(lines)

    def to_dict(self) -> CurveArguments:
        """All arguments, as plain JSON values.

        >>> PlateauCurve.from_dict(PlateauCurve(10).to_dict()) == PlateauCurve(10)
        True
        """
        return {
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "plateaus": [list(pair) for pair in self.plateaus],
            "absolute_plateaus": [list(pair) for pair in self.absolute_plateaus],
            "min_lr_ratio": self.min_lr_ratio,
            "init_lr_ratio": self.init_lr_ratio,
            "warmup": self.warmup,
            "decay": self.decay,
        }

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """The curve that `to_dict` wrote.

        Raises:
            TypeError: `arguments` is not a mapping.
            ValueError: A key is missing or unknown; else as the constructor.
        """
        if not isinstance(arguments, Mapping):
            raise TypeError(f"arguments = {arguments!r} must be a mapping, as to_dict returns it")
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in arguments]
        unknown = [name for name in arguments if name not in names]
        if missing or unknown:
            raise ValueError(
                f"not the arguments of a PlateauCurve: missing keys {missing}, unknown keys {unknown}"
            )
        return cls(**arguments)

    def __getstate__(self) -> dict[str, Any]:
        # The table is left out of pickles and copies: it follows from the arguments.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "__dict__", Namespace(state))
