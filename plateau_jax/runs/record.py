"""The record of a run: its curve, its peak and its clock, in plain values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat, TypedDict, cast

from plateau_jax.arguments import checks
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.clocks.clock import AnyClock, CheckedClock, check_clock
from plateau_jax.curves.curve import Curve, check_curve
from plateau_jax.saved_states.formats import Format, describe_error


class _SavedRecord(TypedDict):
    kind: str
    format: int
    curve: dict[str, Any]
    """The result of `Curve.to_dict`."""
    peak_value: float | None
    """The shortest decimal of the peak's float32; None if it was not recorded."""
    clock: dict[str, Any] | list[dict[str, Any]] | None
    """The result of `to_dict` of a `DataClock`, or a list with that of each rule; None without a
    clock."""


_FORMAT = Format("resume_record", _SavedRecord)


def resume_record(
    curve: Curve, peak_value: SupportsFloat | None = None, clock: AnyClock | None = None
) -> dict[str, Any]:
    """Return the record of a run for `check_resume` and `check_resume_file`.

    Save it with an optax state, or in the state of a trainer: such a state contains the step of the
    curve, but not the curve, its clock and the peak. If a run uses several curves, or a curve with
    several peaks, save a record of each. In flax, whose serialization turns lists into
    dictionaries, save `json.dumps(record)`, and pass `json.loads(text)` to `check_resume`. The
    states of `lambda_lr` and `TrainStep` contain a record of each parameter group, under
    `"records"`.

    Args:
        curve: The curve of the run.
        peak_value: The peak learning rate; None to leave it out of the comparison.
        clock: The clock of the run: a `DataClock`, a hold rule such as `HoldUntilFlat`, or a list
            of hold rules. By default the run counts updates.

    Returns:
        A dictionary of plain JSON values, with the keys `"kind"`, `"format"`, `"curve"`,
        `"peak_value"` and `"clock"`. The peak is the shortest decimal that rounds to its float32.

    Raises:
        TypeError: `curve`, `peak_value` or `clock` has the wrong type.
        ValueError: One of these:

            - The peak is negative, not finite, or positive and below 2⁻¹²⁶.
            - `clock` has a `HoldUntilFlat`, but the curve has no plateau.
            - The curve is from `BatchPlan.scale`, and needs a different clock.

    >>> from plateau_jax import DataClock, StagedCurve, resume_record
    >>> curve = StagedCurve([(10, 1.0)])
    >>> resume_record(curve, 3e-4, DataClock(64))  # doctest: +NORMALIZE_WHITESPACE
    {'kind': 'resume_record', 'format': 1,
     'curve': {'kind': 'staged', 'stages': [[10, 1.0, 'linear']], 'start': 0.0},
     'peak_value': 0.0003, 'clock': {'kind': 'data', 'unit': 64, 'count': None}}
    """
    curve = check_curve("curve", curve)
    peak = None
    if peak_value is not None:
        peak = shortest_decimal(peak_value)
    record = Record(curve, peak, check_clock(clock, [curve]).to_plain())
    return dump_records([record])[0]


class Record(NamedTuple):
    """The schedule of a parameter group, in this run or in a saved one."""

    curve: Any
    """A `Curve`; None if a scheduler without a curve saved the run."""
    peak_value: float | None
    """The shortest decimal of the peak's float32; None to leave it out of the comparison."""
    clock: Any
    """The clock in plain values."""


def records_of(
    curves: Sequence[Curve], peaks: Sequence[float], clock: CheckedClock
) -> list[Record]:
    """Return the record of each parameter group of a run."""
    plain_clock = clock.to_plain()
    return [
        Record(curve, shortest_decimal(peak), plain_clock)
        for curve, peak in zip(curves, peaks, strict=True)
    ]


def dump_records(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return records as plain JSON values."""
    return [
        _FORMAT.build(
            curve=record.curve.to_dict(), peak_value=record.peak_value, clock=record.clock
        )
        for record in records
    ]


def read_records(name: str, saved: Any) -> list[Record]:
    """Read a saved record, or a list of records, one for each parameter group."""
    if not isinstance(saved, list | tuple):
        return [_read_record(name, saved)]
    items = cast("Sequence[Any]", saved)
    if len(items) == 1:
        return [_read_record(name, items[0])]
    records: list[Record] = []
    known: tuple[Any, Curve] | None = None
    for index, item in enumerate(items):
        records.append(_read_record(f"group {index} of {name}", item, known))
        known = item["curve"], records[-1].curve
    return records


def _read_record(name: str, record: Any, known: tuple[Any, Curve] | None = None) -> Record:
    """Read a record; `known` is the curve of the one before, saved and built."""
    try:
        if not isinstance(record, Mapping):
            raise TypeError("pass what resume_record returned, or a list of such records")
        saved: Any = _FORMAT.read(name, record)
        peak_value: Any = saved["peak_value"]
        if peak_value is not None:
            peak_value = shortest_decimal(peak_value)
        if known is not None and saved["curve"] == known[0]:
            curve = known[1]  # groups often share a curve, and one of many points takes long
        else:
            with suppress_warnings():  # the run that saved it has warned about it
                curve = Curve.from_dict(saved["curve"])
        return Record(curve, peak_value, saved["clock"])
    except Exception as error:  # a wrong type can raise anything
        shown = f"{name} = {checks.short_repr(record)}"
        problem = describe_error(error)
        raise ValueError(f"{shown} is not from resume_record: {problem}") from None


def shortest_decimal(peak: Any) -> float:
    """Return the shortest decimal of the peak's float32: 0.0003, not 0.0003000000142492354."""
    return float(str(checks.peak("peak_value", peak)))
