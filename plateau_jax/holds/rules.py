"""Rules that hold the curve's clock: what the user wrote, checked once, frozen."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from plateau_jax.curves.curve import Curve
from plateau_jax.validation import checks

ThresholdMode = Literal["rel", "abs"]


@dataclass(frozen=True)
class HoldUntilFlat:
    """Hold the clock at the first step of each flat part until a metric stops improving.

    The clock is the step of the curve that gives the rate. A flat part is a run of steps at one exact level:
    a plateau, or a stage that stays at its level. The clock stops at the first step of the flat part. It goes
    on after `patience` readings in a row without improvement, and at the latest after `limit` updates at that
    step. The other steps of the flat part then follow as usual, without another stop. With `limit=1` the
    clock never stops.

    A reading is the mean of `every` metrics, counted from the first update of the hold: their float32
    sum, in order, times float32(1/`every`). A metric is rounded to float32 first; one that is not
    finite is left out of the mean, and its update still counts for `limit`. With t = `threshold`, a
    reading improves where, in float32,

        reading < best·float32(1 - t)    for "rel", whose metric is never negative
        reading < best - float32(t)      for "abs"

    Here best is the last reading that improved. The first reading of each hold improves.

    Args:
        patience: Readings in a row without improvement; 1 to 2³¹ - 1.
        threshold: What counts as an improvement, at least 0; for `"rel"` at most 1.
        threshold_mode: `"rel"` or `"abs"`.
        every: Metrics in a reading; 1 to `limit`.
        limit: Updates at one clock at most; 1 to 2³¹ - 1.

    Raises:
        TypeError: A count that is not an integer, a threshold that is not a number.
        ValueError: A value out of its range.

    >>> HoldUntilFlat(5, every=100, limit=20_000)
    HoldUntilFlat(patience=5, threshold=0.0001, threshold_mode='rel', every=100, limit=20000)
    """

    patience: int
    _: KW_ONLY
    threshold: float = 1e-4
    threshold_mode: ThresholdMode = "rel"
    every: int = 1
    limit: int

    def __post_init__(self) -> None:
        threshold = checks.number("threshold", self.threshold)
        mode = checks.one_of("threshold_mode", self.threshold_mode, get_args(ThresholdMode))
        if threshold < 0:
            raise ValueError(f"threshold = {threshold!r} must not be negative")
        if mode == "rel" and threshold > 1:
            raise ValueError(f'threshold = {threshold!r} must be at most 1 for threshold_mode="rel"')
        checks.float32("threshold", threshold)
        every, limit = checks.positive_int("every", self.every), checks.positive_int("limit", self.limit)
        if every > limit:
            raise ValueError(
                f"every = {every} must be at most limit = {limit}: the hold would end with no reading"
            )
        object.__setattr__(self, "patience", checks.positive_int("patience", self.patience))
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "threshold_mode", mode)
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "limit", limit)

    def to_dict(self) -> dict[str, Any]:
        """The kind and all arguments, as plain JSON values."""
        return {"kind": "hold_until_flat", **asdict(self)}


@dataclass(frozen=True)
class HoldBelow:
    """Hold the clock for some updates once a metric has fallen to a value.

    A value is reached at the first update with, in float32,

        reading = float32(1/every) · Σ metrics ≤ value

    After this update, and after the next `steps` - 1 updates, the clock stays where it is. (The clock is the
    step of the curve that gives the rate; without a rule it moves one on after every update.) For several
    values write `HoldBelow([(value, steps), …])`, from the highest value down. Each value is reached once. If
    a value is reached during a hold, or several at once, their steps are added.

    A reading is made of `every` metrics, counted from the first update of the training and summed in
    order. A metric is rounded to float32 first; one that is not finite is left out of the mean.

    Args:
        value: A number, or pairs (value, steps) with falling values.
        steps: For a single `value`, how many updates the hold lasts. The steps of all pairs together are 1 to
            2³¹ - 1.
        every: Metrics in a reading; 1 to 2³¹ - 1.

    Raises:
        TypeError: A value that is not a number, steps that are not an integer, something that is not a
            pair.
        ValueError: A number out of its range; values that do not fall; no pair.

    >>> HoldBelow(0.5, 100) == HoldBelow([(0.5, 100)])
    True
    >>> HoldBelow([(0.5, 100), (0.2, 300)], every=10)
    HoldBelow(value=((0.5, 100), (0.2, 300)), steps=None, every=10)
    """

    value: float | Sequence[tuple[float, int]]
    steps: int | None = None
    _: KW_ONLY
    every: int = 1

    def __post_init__(self) -> None:
        if self.steps is not None:
            found = [("HoldBelow", self.value, self.steps)]
        elif isinstance(self.value, Iterable):
            found = checks.pairs("value", self.value, "(value, steps)")
        else:
            raise TypeError(f"value = {self.value!r} must be pairs (value, steps), or steps must be given")
        pairs = [
            (checks.float32(f"{label}: value", value), checks.positive_int(f"{label}: steps", steps))
            for label, value, steps in found
        ]
        if not pairs:
            raise ValueError("value holds no pair (value, steps); at least one is needed")
        for (value, _), (following, _) in pairwise(pairs):
            if following >= value:
                raise ValueError(
                    f"value = {self.value!r} must hold falling values; {following!r} follows {value!r}"
                )
        checks.positive_int("the sum of all steps", sum(steps for _, steps in pairs))
        value, steps = pairs[0] if len(pairs) == 1 else (tuple(pairs), None)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "every", checks.positive_int("every", self.every))

    @property
    def pairs(self) -> tuple[tuple[float, int], ...]:
        """(value, steps) of each."""
        return cast("Any", self.value if self.steps is None else ((self.value, self.steps),))

    def to_dict(self) -> dict[str, Any]:
        """The kind and all arguments, as plain JSON values."""
        value = [list(pair) for pair in self.pairs] if self.steps is None else self.value
        return {"kind": "hold_below", "value": value, "steps": self.steps, "every": self.every}


Rule = HoldUntilFlat | HoldBelow


def check_rules(hold: Any, curve: Curve) -> tuple[Rule, ...]:
    """The rules that the user gave: none for None, one, or those of a list.

    Raises:
        TypeError: Something that is not a rule.
        ValueError: An empty list; a `HoldUntilFlat` for a curve without a flat part.
    """
    if hold is None:
        return ()
    rules: tuple[Any, ...] = tuple(cast("Any", hold)) if isinstance(hold, list | tuple) else (hold,)
    if not all(isinstance(rule, Rule) for rule in rules):
        raise TypeError(
            f"hold = {checks.short_repr(hold)} must be a HoldUntilFlat, a HoldBelow, or a list of them"
        )
    if not rules:
        raise ValueError("hold is an empty list; write None for no rule")
    for rule in rules:
        if isinstance(rule, HoldUntilFlat) and not curve.flat_starts:
            raise ValueError(
                f"{rule!r} needs a flat part to hold at, and {checks.short_repr(curve)} has none: "
                "add plateaus=[(start %, duration %)], or to a StagedCurve a stage (steps,)"
            )
    return rules
