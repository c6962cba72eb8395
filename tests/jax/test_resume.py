"""A run resumes under the curve, clock and peak that it has seen, or is rejected."""

import json
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.clocks.holds import any_rule, rules
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.runs import peaks

from plateau_jax import (
    BatchPlan,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    resume_record,
)
from plateau_jax.clocks.clock import CLOCKS

CURVE = PlateauCurve(300, warmup_steps=30, plateaus=[(10, 20), (50, 30)], min_lr_ratio=0.1)
STAGES = StagedCurve([(100 + index, 1 - index / 16) for index in range(12)])
UNTIL, BELOW = HoldUntilFlat(3, threshold=0.1, limit=9), HoldBelow([(0.3, 5), (0.1, 7)])


def _mapped(record: Any, number: Callable[[Any], Any], sequence: Callable[[list[Any]], Any]) -> Any:
    """Replace each number and each list in a record, as checkpoint libraries do."""
    if isinstance(record, dict):
        return {key: _mapped(value, number, sequence) for key, value in record.items()}
    if isinstance(record, list):
        return sequence([_mapped(value, number, sequence) for value in record])
    return number(record) if isinstance(record, int | float) else record


def _same(value: Any) -> Any:
    return value


def _indexed(items: list[Any]) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}


def _as_array(items: list[Any]) -> Any:
    return np.array(items) if items and isinstance(items[0], int | float) else items


TRANSPORTS: dict[str, Callable[[Any], Any]] = {
    "JSON": lambda record: json.loads(json.dumps(record)),
    "pickle": lambda record: pickle.loads(pickle.dumps(record)),
    "NumPy scalars in tuples": lambda record: _mapped(record, lambda n: np.asarray(n)[()], tuple),
    "NumPy arrays": lambda record: _mapped(record, _same, _as_array),
    "JAX arrays": lambda record: _mapped(record, jnp.asarray, list),
    "lists by index": lambda record: _mapped(record, _same, _indexed),
    "lists by sorted index": lambda record: json.loads(
        json.dumps(_mapped(record, _same, _indexed), sort_keys=True)
    ),
    "without None": lambda record: {key: value for key, value in record.items() if value is not None},
}
every_transport = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)
STEPS = int, np.int64, np.asarray, jnp.int32


def _rejected(match: str, *arguments: Any) -> None:
    with pytest.raises(ValueError, match=match):
        check_resume(*arguments)


def _near(one: float, other: float) -> bool:
    """Cooldowns round the level at which they begin."""
    return math.isclose(one, other, rel_tol=2**-22, abs_tol=2**-57)


@pytest.mark.filterwarnings("ignore:at = ")
@examples(60)
@given(
    descriptions(range(3)),
    descriptions(range(3), depth=1),
    st.sampled_from(STEPS),
    st.integers(0, 40),
    st.sampled_from([None, DataClock(64), BELOW]),
)
def test_resumes_exactly_if_steps_so_far_agree(
    description: Description, other: Description, form: Any, saved_at: int, clock: Any
) -> None:
    old = build(description)
    saved, step = json.loads(json.dumps(resume_record(old, clock=clock))), form(saved_at)
    # With a clock, some updates may have used this step already.
    is_used = clock is not None and saved_at < old.total_steps
    for new in (old, build(other), PlateauCurve(20).then(CURVE)):
        now = resume_record(new, clock=clock)
        if new.same_until(old, saved_at) and (not is_used or _near(old(saved_at), new(saved_at))):
            check_resume(saved, now, step)
            assert all(_near(old(at), new(at)) for at in range(saved_at + is_used))
        else:
            same = new.first_difference(old)
            message = f"^the run cannot resume at step {saved_at}: .* differ from step {same} on; resume"
            _rejected(message, saved, now, step)
    check_resume(saved, resume_record(old.cooldown(saved_at, 7), clock=clock), saved_at)
    if saved_at <= old.total_steps < 2**30:
        check_resume(saved, resume_record(old.then(CURVE), clock=clock), saved_at)


def test_run_with_a_clock_has_used_the_step_at_which_it_stands() -> None:
    """Without a clock it has not."""
    old = StagedCurve([(100, 1.0), (100,), (100, 0.0)])
    new = StagedCurve([(100, 1.0), (100,), (0, 0.5), (100, 0.0)])
    check_resume(resume_record(old), resume_record(new), 200)
    for clock in (BELOW, DataClock(64)):
        saved, now = (resume_record(curve, clock=clock) for curve in (old, new))
        _rejected("differ from step 200 on", saved, now, 200)


@every_transport
@pytest.mark.parametrize("clock", [None, DataClock(64), UNTIL, [UNTIL, BELOW]], ids=str)
def test_record_survives(transport: Callable[[Any], Any], clock: Any) -> None:
    curves = [CURVE, STAGES, PlateauCurve(300), CURVE.cooldown(120, 13, to=0.05).then(CURVE)]
    if isinstance(clock, DataClock):
        curves.append(BatchPlan([(0, 8), (7680, 16)]).scale(STAGES, 64, reference=16))
    elif clock:
        curves = [curve for curve in curves if curve.flat_starts]
    for curve in curves:
        saved = transport(resume_record(curve, clock=clock))
        for step in (0, 100, 2**31 - 1):
            check_resume(saved, resume_record(curve, clock=clock), step)
        cooled = resume_record(curve.cooldown(120, 7), clock=clock)
        check_resume(saved, cooled, 120)
        _rejected("differ from step 121 on", saved, cooled, 122)


_amounts = st.sampled_from((1, 8, 64, 65, 2**30))
_clocks: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.builds(DataClock, _amounts, st.none() | _amounts), any_rule, rules, rules.map(tuple)
)


def _is_same(one: Any, other: Any) -> bool:
    """Return True if both clocks move a run alike, whatever an update consumes."""
    if isinstance(one, DataClock) and isinstance(other, DataClock):
        return one.unit == other.unit
    return _listed(one) == _listed(other)


def _listed(clock: Any) -> list[Any]:
    return list(cast("Any", clock)) if isinstance(clock, list | tuple) else [clock]


def _in_float32(number: Any) -> Any:
    return number if isinstance(number, int) else float(str(np.float32(number)))


def _has_short_decimals(clock: Any) -> bool:
    """Return True if float32, such as in JAX's arrays, keeps the numbers of the clock."""
    record = resume_record(CURVE, clock=clock)
    return _mapped(record, _in_float32, list) == record


def _similar(clock: Any) -> list[Any]:
    """Return clocks that differ little from this one, or not at all."""
    if isinstance(clock, DataClock):
        return [replace(clock, count=7), replace(clock, unit=clock.unit + 1), None]
    if clock is None:
        return [DataClock(1), BELOW]
    rules = _listed(clock)
    return [rules, tuple(rules), rules[::-1], [*rules, BELOW], None]


@every_transport
@examples(40)
@given(_clocks.filter(_has_short_decimals), _clocks, st.integers(0, 3))
def test_only_the_same_clock_resumes(
    transport: Callable[[Any], Any], old: Any, other: Any, step: int
) -> None:
    """In any form that a library returns: 5 may come back as 5.0, and a list as a tuple."""
    saved = transport(resume_record(CURVE, clock=old))
    for new in (old, other, *_similar(old)):
        now = resume_record(CURVE, clock=new)
        if _is_same(old, new):
            check_resume(saved, now, step)
        else:
            _rejected(f"cannot resume at step {step}: it was saved with clock=", saved, now, step)


@examples(100)
@given(_clocks, _clocks)
def test_message_names_both_clocks(old: Any, new: Any) -> None:
    """As Python expressions that build them."""
    assume(not _is_same(old, new))
    with pytest.raises(ValueError, match="saved with clock=") as caught:
        check_resume(resume_record(CURVE, clock=old), resume_record(CURVE, clock=new), 3)
    shown = re.search(r"saved with clock=(.*), now (.*); resume with the old clock$", str(caught.value))
    assert shown
    names = {clock.__name__: clock for clock in CLOCKS.values()}
    assert [_listed(eval(text, names)) for text in shown.groups()] == [_listed(old), _listed(new)]


@every_transport
@given(saved=st.none() | peaks, current=st.none() | peaks, clock=st.sampled_from([None, DataClock(64)]))
def test_peaks_are_compared_if_both_records_have_one(
    transport: Callable[[Any], Any], saved: float | None, current: float | None, clock: Any
) -> None:
    record = transport(resume_record(CURVE, saved, clock))
    for peak in (saved, current and float(np.float32(current)), current and jnp.float32(current)):
        now = resume_record(CURVE, peak, clock)
        if None in (saved, peak) or np.float32(saved) == np.float32(peak):
            check_resume(record, now, 200)
        else:
            different = "it was saved with peak_value=.*, now .*; resume with the old peak"
            _rejected(different, record, now, 200)
            if clock is None:
                check_resume(record, now, 0)  # no update has used a peak
            else:
                _rejected(different, record, now, 0)
