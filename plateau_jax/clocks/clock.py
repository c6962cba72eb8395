"""The argument `clock`, which decides how updates move a run along its curve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Count
from plateau_jax.clocks.rules import HOLD_RULE_CLASSES, AnyHoldRule
from plateau_jax.curves.curve import Curve
from plateau_jax.saved_states.storable import Storable

MAX_CONSUMED = 2**62
"""The largest unit, and the largest sum of counts: `TrainStep` counts in int64 on the device."""


@dataclass(frozen=True)
class DataClock(Storable, kind="data"):
    """A clock that counts samples or tokens, `unit` of them for each step of the curve.

        curve_step = consumed // unit,    consumed = the sum of the counts of all earlier updates

    The learning rate then depends on how much data was consumed, not on how it was divided into
    updates. If a unit is larger than a batch size, several updates use the same learning rate.

    For a run of `total` tokens, build the curve with `total // unit` steps, and train while
    `scheduler.consumed < total`. The warmup and other lengths are then in units too.

    Pass a `DataClock` as `clock=` to `lambda_lr`, `TrainStep`, `CurveScheduler`, `scale_by_curve`
    or `resume_record`. Each update then passes its samples or tokens, `step(count=n)`: the sum over
    its micro-batches and over all ranks. A `TrainStep` instead takes the count of its own rank, and
    adds up the ranks.

    `unit` and `count` are also attributes. They may be text: `"64000"`, `"64k"`, `"1.5M"`, `"2B"`.

    Args:
        unit: Samples or tokens in one step of the curve: 1 to 2⁶², in JAX to 2³⁰. Take at most the
            smallest batch, so that every update moves the curve. Do not take 1 token: the curve
            would have billions of steps.
        count: Samples or tokens that each update consumes, on all ranks together: 1 to 2⁶² - 1, in
            JAX to 2³⁰. An update may pass a different number: `step(count=n)`, or in optax
            `update(..., count=n)`. If you leave out `count` here, every update must pass it. A
            resumed run may have a different `count`, but not a different `unit`.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A number is out of range.

    >>> from plateau_jax import CurveScheduler, DataClock, PlateauCurve
    >>> total, unit = 1_000_000, 1_000
    >>> curve = PlateauCurve(total // unit, warmup_steps="1%")
    >>> scheduler = CurveScheduler(curve, peak_value=0.1, clock=DataClock(unit))
    >>> for tokens in (4 * 1500, 4 * 1400):  # two updates, each with four micro-batches
    ...     scheduler.step(count=tokens)
    ...     print(scheduler.consumed, scheduler.curve_step)
    6000 6
    11600 11
    >>> DataClock(64, count=512).to_dict()
    {'kind': 'data', 'unit': 64, 'count': 512}
    """

    unit: int
    count: int | None

    def __init__(self, unit: Count, count: Count | None = None) -> None:
        unit = checks.count("unit", unit, 1, MAX_CONSUMED)
        if count is not None:
            # Less than `MAX_CONSUMED`, so that the sum of the two fits into int64.
            count = checks.count("count", count, 1, MAX_CONSUMED - 1)
        vars(self).update(unit=unit, count=count)


AnyClock = DataClock | AnyHoldRule | Sequence[AnyHoldRule]
"""The types of an argument `clock`; None counts updates."""


@dataclass(frozen=True)
class CheckedClock:
    """A checked `clock`. With neither a unit nor rules, a step of the curve is an update."""

    unit: int | None = None
    """Samples or tokens in one step of the curve; None if a step is an update."""
    count: int | None = None
    """Samples or tokens per update, unless the update passes a different number."""
    rules: tuple[AnyHoldRule, ...] = ()
    """Rules that may hold the curve at its step; () with a unit."""
    flat_starts: frozenset[int] = frozenset()
    """With rules, the first step of each plateau of the curve."""

    def to_plain(self) -> dict[str, Any] | list[dict[str, Any]] | None:
        """Return the clock as the plain JSON values in a record."""
        if self.unit is not None:
            return DataClock(self.unit, self.count).to_dict()
        if self.rules:
            return [rule.to_dict() for rule in self.rules]
        return None


def check_clock(clock: Any, curves: Sequence[Curve]) -> CheckedClock:
    """Check the argument `clock` of a run with these curves, one for each parameter group.

    Raises:
        TypeError: It is neither a `DataClock` nor a rule nor a list of rules.
        ValueError: The curves follow a batch plan in a different unit; with rules the curves
            differ, or a `HoldUntilFlat` finds no plateau.
    """
    units = [curve.unit for curve in curves if curve.unit is not None]
    if clock is None and units:
        clock = DataClock(units[0])
    if isinstance(clock, DataClock):
        checked = CheckedClock(clock.unit, clock.count)
    elif clock is None:
        checked = CheckedClock()
    else:
        rules = _check_rules(clock, curves)
        checked = CheckedClock(rules=rules, flat_starts=frozenset(curves[0].flat_starts))
    for unit in units:
        if unit != checked.unit:
            requirement = (
                f"be DataClock({unit}), because the curve follows a batch plan in this unit"
            )
            raise ValueError(checks.must("clock", clock, requirement))
    return checked


def _check_rules(clock: Any, curves: Sequence[Curve]) -> tuple[AnyHoldRule, ...]:
    rules: tuple[Any, ...] = (clock,)
    if isinstance(clock, list | tuple):
        rules = tuple(cast("Any", clock))
    if not all(isinstance(rule, AnyHoldRule) for rule in rules):
        names = ", ".join(f"a {rule.__name__}" for rule in HOLD_RULE_CLASSES)
        allowed = f"be a DataClock, {names}, or a list of such rules"
        raise TypeError(checks.must("clock", clock, allowed))
    if any(curve != curves[0] for curve in curves):
        raise ValueError(
            "with a hold rule as clock, all parameter groups must follow the same curve"
        )
    for rule in rules:
        rule._check_curve(curves[0])
    return rules
