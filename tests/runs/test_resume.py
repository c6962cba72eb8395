"""A run resumes under the curve, clock and peak that it has seen, or is rejected."""

import json
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.curves.requirements import at_least
from support.examples import examples
from support.raises import raises
from support.schedulers.runs import FLOAT32_MAX, peaks

from plateau_jax import (
    CurveWarning,
    DataClock,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    resume_record,
)

CURVE = PlateauCurve(300, warmup_steps=30, plateaus=[(10, 20), (50, 30)], min_lr_ratio=0.1)
UNTIL = HoldUntilFlat(3, threshold=0.1, limit=9)
STAGES = StagedCurve([(100 + index, 1 - index / 16) for index in range(12)])


BELOW = HoldBelow(0.3, 5)


def through_json(record):
    return json.loads(json.dumps(record))


@pytest.mark.filterwarnings("ignore:at = ")
@examples(60)
@given(
    descriptions(range(3)),
    descriptions(range(3), depth=1),
    st.sampled_from([int, np.int64, np.asarray, jnp.int32]),
    st.integers(0, 40),
    st.sampled_from([None, DataClock(64), BELOW]),
)
def test_resumes_exactly_if_steps_so_far_agree(description, other, form, saved_at, clock):
    old = build(description)
    saved = through_json(resume_record(old, clock=clock))
    step = form(saved_at)
    used_steps = range(saved_at)
    if clock is not None and saved_at < old.total_steps:
        used_steps = range(saved_at + 1)  # some updates may have used this step already
    for new in (old, build(other), PlateauCurve(20).then(CURVE)):
        now = resume_record(new, clock=clock)
        is_same = new.same_until(old, saved_at)
        if saved_at in used_steps:
            is_same = is_same and old(saved_at) == new(saved_at)
        if is_same:
            check_resume(saved, now, step)
            for used_step in used_steps:
                assert old(used_step) == new(used_step)
        else:
            different = new.first_difference(old)
            with raises(
                ValueError,
                f"the run cannot resume at step {saved_at}: ",
                f" differ from step {different} on; ",
                "resume with the old curve",
            ):
                check_resume(saved, now, step)
    cooled = resume_record(old.cooldown(saved_at, 7), clock=clock)
    check_resume(saved, cooled, saved_at)
    if saved_at <= old.total_steps < 2**30:
        continued = resume_record(old.then(CURVE), clock=clock)
        check_resume(saved, continued, saved_at)


CLOCKS = [
    ("updates", None),
    ("64 samples", DataClock(64)),
    ("64 samples", DataClock(64, count=7)),
    ("65 samples", DataClock(65)),
    ("until", UNTIL),
    ("until", [UNTIL]),
    ("longer until", replace(UNTIL, limit=10)),
    ("below", BELOW),
    ("until, below", [UNTIL, BELOW]),
    ("until, below", (UNTIL, BELOW)),
    ("below, until", [BELOW, UNTIL]),
]
"""Clocks with the same name move a run alike, whatever an update consumes."""


@pytest.mark.parametrize(("name", "clock"), CLOCKS)
def test_only_the_same_clock_resumes(name, clock):
    """In any form that a library returns: 5 may come back as 5.0, and a list as a tuple."""
    saved = through_json(resume_record(CURVE, clock=clock))
    for present_name, present in CLOCKS:
        now = resume_record(CURVE, clock=present)
        if present_name == name:
            check_resume(saved, now, 3)
        else:
            with raises(ValueError, "saved with"):
                check_resume(saved, now, 3)


# A longer run.


def test_longer_run_in_percent_is_told_to_write_steps():
    saved = resume_record(StagedCurve.wsd(1000, warmup_steps="5%", decay_steps="20%"))
    in_percent = resume_record(StagedCurve.wsd(2000, warmup_steps="5%", decay_steps="20%"))
    in_steps = resume_record(StagedCurve.wsd(2000, warmup_steps=50, decay_steps=200))
    with raises(
        ValueError,
        "; to train longer, give the phases so far the same lengths in steps, not percent, ",
        "; otherwise resume with the old curve, or pass strict=False",
    ):
        check_resume(saved, in_percent, 600)
    check_resume(saved, in_steps, 600)


# Wrong arguments.

RECORD = resume_record(CURVE)


def test_wrong_call():
    with raises(ValueError, "step = -1", at_least(0)):
        check_resume(RECORD, RECORD, -1)
    for record in (json.dumps(RECORD), {**RECORD, "peak_value": -1.0}):
        with raises(ValueError, "saved = ", "is not from resume_record: "):
            check_resume(record, RECORD, 10)
    with raises(TypeError, "strict = 'no' must be a bool"):
        check_resume(RECORD, RECORD, 0, strict="no")
    with raises(ValueError, "the number of groups was 1, and is 0 now"):
        check_resume(RECORD, [], 10)


# Records of several groups, a state without a record, and a wanted change.


def test_records_of_groups():
    records = [resume_record(CURVE, 0.5), resume_record(STAGES, 0.25)]
    saved = through_json(records)
    check_resume(saved, records, 200)
    check_resume(through_json(records[:1]), records[0], 200)
    with raises(ValueError, "group 0 was saved with a peak of 0.5, now 0.25"):
        check_resume(saved, records[::-1], 200)
    changed = [records[0], resume_record(CURVE, 0.25)]
    with raises(ValueError, "the values of group 1 differ from step"):
        check_resume(saved, changed, 200)


def test_state_without_a_record_is_not_compared():
    record = resume_record(CURVE)
    with pytest.warns(CurveWarning, match="at step 200 from a state without a record"):
        check_resume(None, record, 200)
    with raises(ValueError, "is not from resume_record"):
        check_resume(None, {}, 200)
    check_resume(None, record, 0)
    with_clock = resume_record(CURVE, clock=DataClock(64))
    with pytest.warns(CurveWarning, match="at step 0 from a state without a record"):
        check_resume(None, with_clock, 0)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (resume_record(STAGES, 0.5), "a different curve: .* at step 200 of this curve"),
        (resume_record(CURVE, 0.25), "a different peak: .* continues with 0.25"),
        (
            resume_record(CURVE, 0.5, DataClock(64)),
            "a different clock: .* now {'kind': 'data'",
        ),
        (
            [resume_record(CURVE, 0.5)] * 2,
            "the number of groups was 1, and is 2 now",
        ),
    ],
)
def test_wanted_change_is_a_warning(now, message):
    saved = resume_record(CURVE, 0.5)
    with raises(ValueError, "pass strict=False"):
        check_resume(saved, now, 200)
    with pytest.warns(CurveWarning, match=message):
        check_resume(saved, now, 200, strict=False)


@given(
    saved=st.none() | peaks,
    current=st.none() | peaks,
    clock=st.sampled_from([None, DataClock(64)]),
)
def test_peaks_are_compared_if_both_records_have_one(saved, current, clock):
    record = through_json(resume_record(CURVE, saved, clock))
    forms = [saved, None]
    if current is not None:
        rounded = float(np.float32(current))
        forms = [saved, rounded, jnp.float32(current)]
    for peak in forms:
        now = resume_record(CURVE, peak, clock)
        if saved is None or peak is None or np.float32(saved) == np.float32(peak):
            check_resume(record, now, 200)
        else:
            parts = ["it was saved with ", ", now ", "; resume with the old peak"]
            with raises(ValueError, *parts):
                check_resume(record, now, 200)
            if clock is None:
                check_resume(record, now, 0)  # no update has used a peak
            else:
                with raises(ValueError, *parts):
                    check_resume(record, now, 0)


@example(FLOAT32_MAX)
@given(st.floats(2.0**-126, FLOAT32_MAX, width=32))
def test_record_has_the_shortest_decimal_of_the_peak(peak):
    """It reads as the peak's float32, and no decimal of fewer digits does."""
    recorded = resume_record(CURVE, peak)["peak_value"]
    assert np.float32(recorded) == peak
    digits = len(Decimal(repr(recorded)).normalize().as_tuple().digits)
    for rounding in (ROUND_FLOOR, ROUND_CEILING):
        shorter = Context(prec=max(digits - 1, 1), rounding=rounding).create_decimal(peak)
        with np.errstate(over="ignore"):
            assert digits == 1 or np.float32(float(shorter)) != peak


def test_damaged_record_is_named_by_its_group():
    now = [resume_record(CURVE), resume_record(STAGES)]
    saved = through_json(now)
    del saved[1]["curve"]
    with raises(ValueError, "group 1 of ", "curve"):
        check_resume(saved, now, 0)
    with raises(ValueError, "saved") as caught:
        check_resume(saved[1:], now[1:], 0)
    assert "group" not in str(caught.value)
