"""Wrong arguments of a `PlateauCurve`: each error names the argument and shows its value."""

import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.strategies import MAX_STEP
from support.rejections import rejects

from plateau_jax import PlateauCurve
from plateau_jax.validation import checks

NAN, INF = float("nan"), float("inf")
RATIOS = "min_lr_ratio", "init_lr_ratio"
PLATEAUS = "plateaus", "absolute_plateaus"
UNORDERED = [{85, 10}, frozenset((85, 10)), {85: 0, 10: 0}, {85: 0, 10: 0}.keys(), {0: 85, 1: 10}.values()]
NOT_PAIRS = [(50,), (50, 10, 5), 50, "50", None, ()]
NOT_INTEGERS = [True, np.True_, 10.5, 10.0, "10", None, NAN, 3j, np.float32(10), [10], Fraction(10)]
NOT_SEQUENCES = [None, 50, "50", np.array(50), set(), {(85, 10)}, {(85, 10): 0}, {85: 10}.items()]
TOO_LARGE_OR_SMALL = [-0.1, 1.0000000000000002, 2, NAN, INF, -INF, np.float32(1.5), 10**150]

REJECTED = [
    *(
        (TypeError, {name: value}, "integer")
        for name in ("total_steps", "warmup_steps")
        for value in NOT_INTEGERS
    ),
    *((ValueError, {"total_steps": value}, str(MAX_STEP)) for value in (0, -1, MAX_STEP + 1, np.int64(-5))),
    *((ValueError, {name: value}, "") for name in RATIOS for value in TOO_LARGE_OR_SMALL),
    *((TypeError, {name: value}, "number") for name in RATIOS for value in (True, "0.1", None, 0j, [0.1])),
    *(
        (ValueError, {name: value}, "'linear', 'cosine'")
        for name in ("warmup_shape", "decay_shape")
        for value in ("exponential", "Linear", "", None, 1, ["linear"])
    ),
    *((TypeError, {name: value}, "pair") for name in PLATEAUS for value in NOT_SEQUENCES),
]


@pytest.mark.parametrize(("error", "wrong", "part"), REJECTED, ids=str)
def test_error_names_argument_and_shows_value(error, wrong, part):
    ((name, value),) = wrong.items()
    shown = (
        re.sub(r"^np\.(float32|int64)\((.*)\)$", r"\2", repr(value)) if error is ValueError else repr(value)
    )
    rejects(error, f"{name} = {shown}", part, call=PlateauCurve, **{"total_steps": 100} | wrong)


@given(st.integers(1, MAX_STEP), st.integers())
def test_warmup_must_leave_a_step(total, warmup):
    if 0 <= warmup < total:
        assert PlateauCurve(total, warmup_steps=warmup)(warmup) == 1
        return
    wrong = f"warmup_steps = {warmup}"
    rejects(ValueError, wrong, str(total - 1), call=PlateauCurve, total_steps=total, warmup_steps=warmup)


PAIRS_REJECTED = [
    *((TypeError, name, pair) for name in PLATEAUS for pair in (*NOT_PAIRS, *UNORDERED)),
    *(
        (ValueError, "plateaus", pair)
        for value in (-1, -0.5, 100.5, 101, 10**150)
        for pair in ((value, 10), (10, value))
    ),
    # During the warmup, or of negative length.
    *((ValueError, "absolute_plateaus", pair) for pair in ((-1, 5), (9, 5), (50, -1), (-(10**30), 2))),
]


@pytest.mark.parametrize(("error", "name", "pair"), PAIRS_REJECTED, ids=str)
def test_error_names_and_shows_pair(error, name, pair):
    right = (20, 5)
    arguments = {"total_steps": 100, "warmup_steps": 10, name: [right, pair]}
    rejects(error, f"{name}[1] = {pair!r}", call=PlateauCurve, **arguments)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *((name, value, TypeError) for name in PLATEAUS for value in (None, "10", True, 1j)),
        *(("absolute_plateaus", value, TypeError) for value in (50.0, 10.5, np.float64(50))),
        *(("plateaus", value, ValueError) for value in (NAN, INF, -INF)),
    ],
    ids=str,
)
def test_error_names_the_part_of_a_pair(name, value, error):
    second = "duration" if name == "plateaus" else "length"
    for pair, part in (((value, 5), "start"), ((50, value), second)):
        wrong = f"{name}[1].{part} = {value!r} must be"
        rejects(error, wrong, call=PlateauCurve, total_steps=100, **{name: [(20, 5), pair]})


@pytest.mark.parametrize("name", PLATEAUS)
@pytest.mark.parametrize("pair", [[85, 10], np.array([85, 10]), range(85, 9, -75)], ids=repr)
def test_any_ordered_pair_is_accepted(name, pair):
    assert getattr(PlateauCurve(100, **{name: [pair]}), name) == ((85, 10),)


@pytest.mark.parametrize(
    ("plateaus", "message"),
    [
        ({"plateaus": [(95, 10)]}, "plateaus[0] = (95, 10) must end by total_steps = 100"),
        ({"plateaus": [(100, 1)]}, "plateaus[0] = (100, 1) must end by total_steps"),
        ({"absolute_plateaus": [(101, 0)]}, "absolute_plateaus[0] = (101, 0) must end by total_steps"),
        ({"absolute_plateaus": [(10, 10**30)]}, f"absolute_plateaus[0] = (10, {10**30}) must end by total"),
        ({"plateaus": [(25, 10), (10, 20)]}, "plateaus[1] = (10, 20) must end before .* at step 25"),
        ({"plateaus": [(10, 20), (15, 0)]}, "plateaus[0] = (10, 20) must end before .* at step 15"),
        ({"plateaus": [(10, 20), (10, 20)]}, "plateaus[0] = (10, 20) must end before .* at step 10"),
        ({"absolute_plateaus": [(10, 20), (29, 10)]}, "absolute_plateaus[0] = (10, 20) must end .* step 29"),
        ({"plateaus": [(10, 20)], "absolute_plateaus": [(29, 5)]}, "plateaus[0] = (10, 20) must .* step 29"),
        (
            {"plateaus": [(28, 5)], "absolute_plateaus": [(10, 20)]},
            "absolute_plateaus[0] = (10, 20) must .* 28",
        ),
    ],
)
def test_overlapping_or_late_plateaus_are_named(plateaus, message):
    begin, _, end = message.partition(" .* ")
    rejects(ValueError, begin, end, call=PlateauCurve, total_steps=100, **plateaus)


@given(st.integers(1, MAX_STEP), st.data())
def test_plateaus_must_leave_a_step_to_decay(total, data):
    warmup = data.draw(st.integers(0, total - 1))
    length = total - warmup
    cut = data.draw(st.integers(0, length))
    plateaus = [(warmup, cut), (warmup + cut, length - cut)]
    arguments = {"total_steps": total, "warmup_steps": warmup, "absolute_plateaus": plateaus}
    rejects(ValueError, "plateaus", "decay", str(length), call=PlateauCurve, **arguments)


OBJECTS = [np.array(items, object) for items in ([1, True], [1, 2.0], [1, None])]
ARRAYS = [*OBJECTS, np.arange(3.0), np.array([True]), [1.0, 2.0], [1, None], ["3"], [True, 2], [[1], [2, 3]]]
SCALARS = [True, np.True_, 3.0, 2.5, np.float32(3), NAN, "3", b"3", None, 3j, Decimal(3), Fraction(3)]


@pytest.mark.parametrize("step", SCALARS + ARRAYS, ids=repr)
def test_step_must_be_an_integer(step):
    message = f"step must be an integer or an array of integers, not {checks.short_repr(step)}"
    rejects(TypeError, message, call=PlateauCurve(10), step=step)


def _changed(**changes):
    written = PlateauCurve(100).to_dict() | changes
    return {name: value for name, value in written.items() if value is not ...}


@pytest.mark.parametrize("name", PlateauCurve(100).to_dict())
def test_missing_key_has_default_except_total_steps(name):
    if name == "total_steps":
        rejects(TypeError, "'total_steps'", call=PlateauCurve.from_dict, arguments=_changed(total_steps=...))
    else:
        assert PlateauCurve.from_dict(_changed(**{name: ...})) == PlateauCurve(100)


@pytest.mark.parametrize("kind", [np.str_, type("Name", (str,), {})])
@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_shape_becomes_plain_string(kind, shape):
    curve = PlateauCurve(100, warmup_shape=kind(shape), decay_shape=kind(shape))
    assert type(curve.warmup_shape) is type(curve.decay_shape) is str
    assert eval(repr(curve)) == curve == PlateauCurve(100, warmup_shape=shape, decay_shape=shape)


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, type("Number", (float,), {})])
@given(st.sampled_from((-0.0, 0.0, 0.25)))
def test_number_becomes_plain_without_signed_zero(kind, value):
    curve = PlateauCurve(100, min_lr_ratio=kind(value), init_lr_ratio=kind(value))
    for ratio in (curve.min_lr_ratio, curve.init_lr_ratio):
        assert type(ratio) is float
        assert repr(ratio) == repr(abs(value))


@pytest.mark.parametrize(
    "value", [NAN, INF, -INF, -1, -1e-30, 2.0**-127, 1e-300, 1e39, 3.4028236e38, 10**150, -(10**150)]
)
def test_peak_out_of_range_is_rejected(value):
    reason = "must not be negative" if value < 0 else ""
    shown = f"peak_value = {checks.short_repr(value)}"
    rejects(ValueError, shown, reason, call=checks.peak, path="peak_value", value=value)


@pytest.mark.parametrize("value", [True, np.True_, "0.1", b"1", None, 1j, [0.1], np.ones(2)])
def test_peak_must_be_a_number(value):
    rejects(TypeError, f"peak_value = {value!r}", call=checks.peak, path="peak_value", value=value)


@given(st.floats(2.0**-126, float(np.finfo(np.float32).max)) | st.sampled_from((0, 1, -0.0, 2.0**-126)))
def test_peak_is_rounded_to_float32_once(value):
    for kind in (float, np.float64, np.array):
        peak = checks.peak("peak_value", kind(value))
        assert type(peak) is np.float32
        assert peak == np.float32(value)
        assert not np.signbit(peak)


@given(st.floats(0, 1e30), st.floats(0, 1e30))
def test_ratio_to_peak_recovers_value(value, peak):
    if value <= peak:
        ratio = checks.ratio_to_peak("end_value", value, peak)
        assert 0 <= ratio <= 1
        assert ratio * peak == pytest.approx(value, rel=1e-15, abs=peak * 2.0**-1074)
    else:
        rejects(
            ValueError,
            f"end_value = {value!r}",
            repr(peak),
            call=checks.ratio_to_peak,
            name="end_value",
            value=value,
            peak=peak,
        )


def test_scalar_array_is_number_unless_boolean():
    assert checks.number("r", np.asarray(np.float32(0.1))) == 0.1
    assert checks.peak("p", np.asarray(0.5)) == 0.5
    for check in (checks.number, checks.peak):
        with pytest.raises(TypeError, match="must be a number"):
            check("p", np.asarray(True))
