"""Errors of schedules, transformations and records of JAX runs, also of traced arguments."""

import json
import math
from functools import cache, partial, reduce
from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.clocks.hold_cases import BELOW, PEAK, STAIRS, UNTIL
from support.curves.scaled import OF_UNIT_8, WRONG_UNITS
from support.errors import check_error, each_row
from support.jax.jax_cases import CURVE

from plateau_jax import (
    PlateauCurve,
    StagedCurve,
    check_resume,
    multiplier,
    optax_schedule,
    resume_record,
    scale_by_curve,
    stack,
)

ONE = jnp.ones(())
TABLE, SCHEDULE = CURVE.table, optax_schedule(CURVE, 1.0)
nan, inf = math.nan, math.inf


@cache
def started(**options: Any) -> Any:
    """Return the function that makes an update, and the first state."""
    transformation = scale_by_curve(STAIRS, PEAK, **options)
    return transformation.update, transformation.init(None)


def update(options: dict[str, Any], **given: Any) -> None:
    function, state = started(**options)
    function(ONE, state, **given)


def with_dtype(dtype: str) -> Any:
    with jax.enable_x64(True):
        return TABLE._replace(start_low=jnp.asarray(TABLE.start_low, dtype))


HELD, COUNTED = {"hold": UNTIL}, {"unit": 8}
RECORD = resume_record(CURVE)
NOT_A_CURVE = RECORD["curve"]
KEPT = "a wrapper kept it, as flax's TrainState.apply_gradients does: call state.tx.update("

ERRORS: list[Any] = [
    # Schedules.
    ("optax_schedule(5, 1.0)", TypeError, "curve = 5"),
    ("optax_schedule(CURVE, jnp.float32(-1))", ValueError, "peak_value = ", "negative"),
    ("optax_schedule(CURVE, 1e-40)", ValueError, "peak_value = 1e-40", "2**-126"),
    ("optax_schedule(CURVE, jnp.ones(2))", TypeError, "peak_value = "),
    ("optax_schedule(CURVE, jnp.ones((), 'complex64'))", TypeError, "peak_value = "),
    ("jax.jit(partial(optax_schedule, CURVE))(jnp.ones(2))", TypeError, "peak_value = ", "real scalar"),
    ("jax.jit(partial(optax_schedule, CURVE))(1j)", TypeError, "peak_value = ", "real scalar"),
    # Tables.
    *(
        (f"multiplier({table}, jnp.arange(3))", TypeError, "table must be one table")
        for table in ("CURVE", "stack([CURVE, CURVE])", "TABLE.begin", "None")
    ),
    *(
        (f"{function}(with_dtype('{dtype}'), 3)", TypeError, f"table.start_low is of {dtype}", "int32")
        for dtype in ("int64", "float64", "float32", "int16")
        for function in ("multiplier", "jax.jit(multiplier)")
    ),
    # Transformations.
    ("scale_by_curve(3, PEAK)", TypeError, "curve = 3"),
    ("scale_by_curve(STAIRS, -1.0)", ValueError, "peak_value = -1.0"),
    ("scale_by_curve(STAIRS, PEAK, hold=3)", TypeError, "hold = 3"),
    ("scale_by_curve(STAIRS, PEAK, hold=[])", ValueError, "hold", "None"),
    ("scale_by_curve(StagedCurve([(5, 1)]), PEAK, hold=UNTIL)", ValueError, "needs a flat part"),
    ("scale_by_curve(STAIRS, PEAK, hold=BELOW, unit=8)", ValueError, "hold = HoldBelow", "unit = 8"),
    ("scale_by_curve(STAIRS, PEAK, unit=0)", ValueError, "unit = 0", "1 … 2**30"),
    ("scale_by_curve(STAIRS, PEAK, unit=2**30 + 1)", ValueError, "unit = 1073741825"),
    ("scale_by_curve(STAIRS, PEAK, unit=8.0)", TypeError, "unit = 8.0", "integer"),
    *(
        (f"{function}(OF_UNIT_8[{index}], {peak}unit={unit})", ValueError, f"unit = {unit} must be 8", "plan")
        for function, peak in (("scale_by_curve", "PEAK, "), ("resume_record", ""))
        for index in range(len(OF_UNIT_8))
        for unit in WRONG_UNITS
    ),
    ("update(HELD)", TypeError, "value is missing: pass value= to update", KEPT, "value=...)"),
    *(
        (f"update(HELD, value={value})", TypeError, "value = ", "real scalar")
        for value in (
            *("np.ones(1)", "jnp.ones(1)", "True", "jnp.array(True)", "jnp.array(1j)", "'0.5'"),
            "{'loss': 0.5}",
        )
    ),
    ("update(COUNTED)", TypeError, "count is missing: pass count= to update", KEPT, "count=...)"),
    ("update(COUNTED, value=3)", TypeError, "count is missing", KEPT),
    *(
        (f"update(COUNTED, count={count})", TypeError, "count = ", "integer")
        for count in (
            *("3.0", "True", "nan", "np.float32(3)", "np.array(True)", "np.ones(2, int)", "'3'"),
            *("jnp.float32(3)", "jnp.array(True)", "jnp.ones(1, int)"),
        )
    ),
    ("update(COUNTED, count=-1)", ValueError, "count = -1", "0 … 2**30"),
    ("update(COUNTED, count=2**30 + 1)", ValueError, "count = 1073741825", "0 … 2**30"),
    *(
        (f"update({{}}, count={count})", TypeError, "count = ", "left out", "unit=n")
        for count in ("0", "3", "-1", "np.int32(3)", "jnp.ones((), 'int32')", "'three'")
    ),
    # Records.
    *(
        (f"check_resume(RECORD, CURVE, {step})", TypeError, "step = ", "int")
        for step in ("1.5", "'3'", "True", "jnp.array([1])", "jnp.array(True)", "np.array(1.0)")
    ),
    ("check_resume(RECORD, CURVE, -1)", ValueError, "step = -1", "at least 0"),
    ("resume_record(NOT_A_CURVE)", TypeError, "curve = ", "must be a Curve"),
    ("resume_record(CURVE, unit=0)", ValueError, "unit = 0"),
    ("resume_record(CURVE, peak_value=-1)", ValueError, "peak_value = -1"),
    ("check_resume(RECORD, NOT_A_CURVE, 1)", TypeError, "curve = ", "must be a Curve"),
    *(
        (f"check_resume({record}, CURVE, 10)", ValueError, "record = ", "is not from resume_record: ")
        for record in (
            *("None", "json.dumps(RECORD)", "Path('record.json')", "{}", "[RECORD]", "RECORD | {'step': 3}"),
            # Curves, of which the second has a "curve" too.
            *("CURVE.to_dict()", "CURVE.cooldown(100, 9).to_dict()"),
            *("{'curve': None}", "{'curve': RECORD}", "{1: 2}"),
            "{'curve': NOT_A_CURVE | {'total_steps': 'many'}}",
            "{'curve': NOT_A_CURVE | {'warmup_steps': np.array(True)}}",
            "RECORD | {'peak_value': -1.0}",
            "reduce(lambda inner, _: {'curve': inner}, range(100_000), {})",
        )
    ),
]


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    with jax.enable_x64(True):
        check_error(row, globals())


STEPS: list[Any] = [
    *(True, np.True_, 3.0, np.float32(3), "3", None, np.arange(3.0), [True, 2.0], jax.random.key(0)),
    *(jnp.ones((), dtype) for dtype in (bool, "float32", "bfloat16", "float16", "complex64")),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{type(step).__name__}-{step}")
def test_steps_that_are_not_integers_are_rejected(step: Any) -> None:
    for call in (SCHEDULE, partial(multiplier, TABLE)):
        runs = [partial(call, step), jax.jit(partial(call, step))]
        if isinstance(step, jax.Array):
            runs += [partial(run, step) for run in (jax.jit(call), jax.vmap(call, axis_size=1, in_axes=None))]
        for run in runs:
            with pytest.raises(TypeError, match="step must be an integer"):
                run()


OPTIONS: list[Any] = [
    {},
    COUNTED,
    *({"hold": hold} for hold in (UNTIL, BELOW, (UNTIL, BELOW), (BELOW, UNTIL))),
]


@pytest.mark.parametrize(("options", "other"), list(permutations(OPTIONS, 2)), ids=str)
def test_state_of_a_different_clock_is_rejected(options: Any, other: Any) -> None:
    (function, _), (_, state) = started(**options), started(**other)
    message = r"^state\.hold = .* must fit the rules"
    if "unit" in options or "unit" in other:
        message = f"^state = .*State, that of unit = {options.get('unit')}"
    given: dict[str, Any] = {"count": 3} if "unit" in options else {"value": 0.5}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(partial(function, **given), ONE, state)
