"""A JAX run resumes under the curve, unit, rules and peak that it has seen, or is rejected."""

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.numerics.oracle import Description
from support.schedulers.runs import peaks

from plateau_jax import (
    BatchPlan,
    HoldBelow,
    HoldUntilFlat,
    PlateauCurve,
    StagedCurve,
    check_resume,
    resume_record,
)

CURVE = PlateauCurve(300, warmup_steps=30, plateaus=[(10, 20), (50, 30)], min_lr_ratio=0.1)
LONGER = PlateauCurve(400, warmup_steps=30, plateaus=[(10, 20), (50, 30)], min_lr_ratio=0.1)
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


def _rejected(match: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        check_resume(*arguments, **options)


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
    st.sampled_from([{}, {"unit": 64}, {"hold": BELOW}]),
)
def test_resumes_exactly_if_steps_so_far_agree(
    description: Description, other: Description, form: Any, saved_at: int, options: dict[str, Any]
) -> None:
    old = build(description)
    record, step = json.loads(json.dumps(resume_record(old, **options))), form(saved_at)
    # A unit or a rule may have kept the clock at this step for some updates.
    is_used = bool(options) and saved_at < old.total_steps
    for new in (old, build(other), PlateauCurve(20).then(CURVE)):
        if new.same_until(old, saved_at) and (not is_used or _near(old(saved_at), new(saved_at))):
            check_resume(record, new, step, **options)
            assert all(_near(old(at), new(at)) for at in range(saved_at + is_used))
        else:
            same = new.first_difference(old)
            message = f"cannot resume at step {saved_at}: .* differ from step {same} on; resume"
            _rejected(message, record, new, step, **options)
    check_resume(record, old.cooldown(saved_at, 7), saved_at, **options)
    if saved_at <= old.total_steps < 2**30:
        check_resume(record, old.then(CURVE), saved_at, **options)


def test_held_run_has_seen_the_step_at_which_it_stands() -> None:
    """Without a rule it has not."""
    old = StagedCurve([(100, 1.0), (100,), (100, 0.0)])
    new = StagedCurve([(100, 1.0), (100,), (0, 0.5), (100, 0.0)])
    check_resume(resume_record(old), new, 200)
    for options in ({"hold": BELOW}, {"unit": 64}):
        _rejected("differ from step 200 on", resume_record(old, **options), new, 200, **options)


@every_transport
@pytest.mark.parametrize("options", [{}, {"unit": 64}, {"hold": UNTIL}, {"hold": [UNTIL, BELOW]}], ids=str)
def test_record_survives(transport: Callable[[Any], Any], options: dict[str, Any]) -> None:
    stages = StagedCurve([(100 + index, 1 - index / 16) for index in range(12)])
    scaled = BatchPlan([(0, 8), (7680, 16)]).scale(stages, 64, reference=16)
    for curve in (CURVE, stages, PlateauCurve(300), CURVE.cooldown(120, 13, to=0.05).then(CURVE), scaled):
        if ("hold" in options and not curve.flat_starts) or curve.unit not in (None, options.get("unit")):
            continue
        record = transport(resume_record(curve, **options))
        for step in (0, 100, 2**31 - 1):
            check_resume(record, curve, step, **options)
        check_resume(record, curve.cooldown(120, 7), 120, **options)
        _rejected("differ from step 121 on", record, curve.cooldown(120, 7), 122, **options)
        for others in ({}, {"unit": 16}, {"hold": BELOW}, {"hold": [BELOW, UNTIL]}, {"hold": UNTIL}):
            if others != options and not ("hold" in others and not curve.flat_starts) and not curve.unit:
                name = "unit" if options.get("unit") != others.get("unit") else "hold"
                _rejected(f"saved with {name} = .*, but here it is", record, curve, 1, **others)


def test_message_names_what_changed() -> None:
    with pytest.raises(ValueError, match=r"^record ") as caught:
        check_resume(resume_record(CURVE), LONGER, 200)
    for part in ("step 200", "total_steps=300, now 400", "differ from step 31 on", "leave out check_resume"):
        assert part in str(caught.value)


@every_transport
@given(saved=st.none() | peaks, current=st.none() | peaks, options=st.sampled_from([{}, {"unit": 64}]))
def test_peaks_are_compared_if_both_sides_name_one(
    transport: Callable[[Any], Any], saved: float | None, current: float | None, options: dict[str, Any]
) -> None:
    record = transport(resume_record(CURVE, peak_value=saved, **options))
    for peak in (saved, current and float(np.float32(current)), current and jnp.float32(current)):
        if None in (saved, peak) or np.float32(saved) == np.float32(peak):
            check_resume(record, CURVE, 200, peak_value=peak, **options)
        else:
            _rejected("^record was saved with peak_value = ", record, CURVE, 200, peak_value=peak, **options)
            if not options:
                check_resume(record, CURVE, 0, peak_value=peak)  # no update has used a peak
            else:
                _rejected("peak_value = ", record, CURVE, 0, peak_value=peak, **options)
