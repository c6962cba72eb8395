"""Compare a run with the saved one that it continues, and decide if it may."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import Message, Path
from plateau_jax.curves.curve import Curve
from plateau_jax.runs.record import Record

_TRAIN_LONGER = (
    "to train longer, give the phases so far the same lengths in steps, not percent, or stretch a "
    "running decay (docs/longer_and_shorter.md)"
)


class StateOwner(NamedTuple):
    """Whose state is resumed: its names in messages, and if a base may differ."""

    subject: str = "state_dict"
    """The subject of the error."""
    override: str = "pass strict=False to load_state_dict"
    """How to resume all the same."""
    base_noun: str = "peak"
    """The noun in messages: "base" for options other than the learning rate."""
    base_setter: str = ""
    """The method that changes the saved base; empty if the run continues with the program's."""

    @property
    def keeps_saved_base(self) -> bool:
        """True if the run continues with the saved base, so that a different one only warns."""
        return bool(self.base_setter)


class _Difference(NamedTuple):
    aspect: str
    """The aspect: "clock", "curve", `StateOwner.base_noun` or "number of groups"."""
    problem: str
    continues: str
    """How the run continues if the difference is accepted."""
    remedy: str = ""
    is_warning: bool = False
    """True if it is only a warning, even if `strict` is True."""


def compare_runs(
    saved: Sequence[Record],
    now: Sequence[Record],
    step: int,
    owner: StateOwner,
    *,
    is_step_used: bool,
    strict: bool,
) -> list[str]:
    """Compare a run with the saved one that it continues, and return the warnings.

    All steps of the curves below `step` are compared. If an update may have used that step already,
    it is compared too, except at or past the end of the saved curve, where the next phase of
    `saved.then(...)` may have a different level. The peaks are compared if an update may have used
    the saved one.

    Raises:
        ValueError: The run cannot continue, and `strict` is True.
    """
    if len(saved) != len(now):
        problem = f"the number of groups was {len(saved)}, and is {len(now)} now"
        continues = f"The run continues at step {step}"
        differences = [_Difference("number of groups", problem, continues)]
    else:
        differences = [_clock_difference(saved, now, step)]
        if step > 0 or is_step_used or owner.keeps_saved_base:
            differences.append(_peak_difference(saved, now, owner))
        differences.append(_curve_difference(saved, now, step, is_step_used=is_step_used))
    warnings: list[str] = []
    for item in filter(None, differences):
        if strict and not item.is_warning:
            remedies = f"resume with the old {item.aspect}, or {owner.override}"
            if item.remedy:
                remedies = f"{item.remedy}; otherwise {remedies}"
            raise ValueError(
                f"{owner.subject} cannot resume at step {step}: {item.problem}; {remedies}"
            )
        message = f"{owner.subject} has a different {item.aspect}: {item.problem}. "
        warnings.append(message + item.continues)
    return warnings


def may_share_steps(records: Sequence[Record]) -> bool:
    """Return True if several updates may have used the same step, because there is a clock."""
    return any(record.clock is not None for record in records)


# The first difference of each kind; None if there is none.


def _clock_difference(
    saved: Sequence[Record], now: Sequence[Record], step: int
) -> _Difference | None:
    for before, record in zip(saved, now, strict=True):
        # Compared as plain values: a library that stores [0.3, 5] as floats returns 5.0.
        if clocks_differ(before.clock, record.clock):
            arguments = _show_changes(before.clock, record.clock, ("clock",))
            continues = f"The run continues at step {step} of the curve, with a fresh clock"
            return _Difference("clock", f"it was saved with {arguments}", continues)
    return None


def clocks_differ(saved: Any, clock: Any) -> bool:
    """Return True if two clocks differ in more than `count`: the batch size may have changed."""
    return bool(_without_count(saved) != _without_count(clock))


def _without_count(clock: Any) -> Any:
    if isinstance(clock, dict):
        return {k: v for k, v in cast("dict[str, Any]", clock).items() if k != "count"}
    return clock


def _peak_difference(
    saved: Sequence[Record], now: Sequence[Record], owner: StateOwner
) -> _Difference | None:
    saved_peaks = [record.peak_value for record in saved]
    peaks = [record.peak_value for record in now]
    for index, (before, peak) in enumerate(zip(saved_peaks, peaks, strict=True)):
        if before is not None and peak is not None and before != peak:
            group = "it"
            if len(set(saved_peaks)) > 1 or len(set(peaks)) > 1:
                group = f"group {index}"
            continues = f"The run continues with {peak}"
            if owner.keeps_saved_base:
                continues = (
                    f"The run continues with {before}: start with this {owner.base_noun}, or call "
                    f"{owner.base_setter}(…) after the load"
                )
            problem = f"{group} was saved with a {owner.base_noun} of {before}, now {peak}"
            return _Difference(
                owner.base_noun, problem, continues, is_warning=owner.keeps_saved_base
            )
    return None


def _curve_difference(
    saved: Sequence[Record], now: Sequence[Record], step: int, *, is_step_used: bool
) -> _Difference | None:
    for index, (before, record) in enumerate(zip(saved, now, strict=True)):
        saved_curve, curve = before.curve, record.curve
        if saved_curve is None or saved_curve == curve:
            continue
        first = curve.first_difference(saved_curve)
        if first is None or step < first:
            continue
        if step == first and not (is_step_used and _value_changes(saved_curve, curve, first)):
            continue
        values = "values"
        if len(now) > 1:
            values += f" of group {index}"
        arguments = _show_changes(saved_curve.to_dict(), curve.to_dict())
        problem = f"it was saved with {arguments}, and the {values} differ from step {first} on"
        remedy = ""
        if curve.total_steps > saved_curve.total_steps:
            remedy = _TRAIN_LONGER
        continues = f"The run continues at step {step} of this curve"
        return _Difference("curve", problem, continues, remedy)
    return None


def _value_changes(saved: Curve, current: Curve, step: int) -> bool:
    """Return True if the level at `step`, which a run has used, would change."""
    if step >= saved.total_steps:
        return False
    return saved(step) != current(step)


def _show_changes(saved: Any, current: Any, path: Path = ()) -> str:
    """Return the first two arguments that differ, as "argument=saved, now current"."""
    changes = list(_changes(saved, current, path))
    if len(changes) > 2:
        changes = [*changes[:2], "…"]
    return "; ".join(changes)


def _changes(saved: Any, current: Any, path: Path) -> Iterator[str]:
    """Yield what differs between the plain values of two curves or clocks, also in nested ones.

    Of different kinds, only the kind is shown; of a list, only the first item that differs.
    """
    if saved == current:
        return
    if isinstance(saved, dict) and isinstance(current, dict):
        before, now = cast("dict[str, Any]", saved), cast("dict[str, Any]", current)
        names = [*{**before, **now}]
        if before.get("kind") != now.get("kind"):
            names = ["kind"]
        for name in names:
            yield from _changes(before.get(name), now.get(name), (*path, name))
    elif isinstance(saved, list) and isinstance(current, list) and isinstance(path[-1], str):
        pairs = zip_longest(cast("list[Any]", saved), cast("list[Any]", current))
        for index, (before, now) in enumerate(pairs):  # None after the end of the shorter list
            if before != now:
                yield from _changes(before, now, (*path, index))
                return
    else:  # also a stage or a plateau, as a whole
        change = f"={checks.short_repr(saved)}, now {checks.short_repr(current)}"
        yield Message(path, change)
