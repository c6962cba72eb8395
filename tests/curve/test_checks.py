"""Wrong arguments of a `PlateauCurve`: each gives one error, which names the argument and its value."""

import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses
from support.strategies import MAX_STEP

from plateau_jax import PlateauCurve

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", ["total_steps", "warmup_steps"])
@pytest.mark.parametrize(
    "value", [True, np.True_, 10.5, 10.0, "10", None, NAN, 3j, np.float32(10), [10], Fraction(10)]
)
def test_a_number_of_steps_that_is_not_an_integer(name, value):
    refuses(
        TypeError, f"{name} = {value!r}", "integer", call=PlateauCurve, **{"total_steps": 100, name: value}
    )


@pytest.mark.parametrize("value", [0, -1, MAX_STEP + 1, 10**30, np.int64(-5), -(10**30)])
def test_total_steps_out_of_range(value):
    refuses(ValueError, f"total_steps = {value}", str(MAX_STEP), call=PlateauCurve, total_steps=value)


@given(st.integers(1, MAX_STEP), st.integers())
def test_a_warmup_that_leaves_no_step_or_is_negative(total, warmup):
    if 0 <= warmup < total:
        assert PlateauCurve(total, warmup_steps=warmup)(warmup) == 1
    else:
        refuses(
            ValueError,
            f"warmup_steps = {warmup}",
            str(total - 1),
            call=PlateauCurve,
            total_steps=total,
            warmup_steps=warmup,
        )


@pytest.mark.parametrize("name", ["min_lr_ratio", "init_lr_ratio"])
@pytest.mark.parametrize("value", [-0.1, 1.0000000000000002, 2, NAN, INF, -INF, np.float32(1.5), 10**400])
def test_ratios_out_of_range(name, value):
    refuses(ValueError, f"{name} = {_shown(value)}", call=PlateauCurve, total_steps=100, **{name: value})


@pytest.mark.parametrize("name", ["min_lr_ratio", "init_lr_ratio"])
@pytest.mark.parametrize("value", [True, np.True_, "0.1", None, 0j, [0.1]])
def test_ratios_that_are_no_numbers(name, value):
    refuses(TypeError, f"{name} = {value!r}", "number", call=PlateauCurve, total_steps=100, **{name: value})


@pytest.mark.parametrize("name", ["warmup_shape", "decay_shape"])
@pytest.mark.parametrize("value", ["exponential", "Linear", "", None, 1, ["linear"]])
def test_unknown_shapes(name, value):
    refuses(
        ValueError,
        f"{name} = {value!r}",
        "'linear'",
        "'cosine'",
        call=PlateauCurve,
        total_steps=100,
        **{name: value},
    )


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [-1, -0.5, 100.5, 101, NAN, INF, -INF, 10**400])
def test_percentages_out_of_range(place, value):
    pair = [(value, 10), (10, value)][place]
    refuses(
        ValueError,
        "plateaus[1] = ",
        _shown(value),
        call=PlateauCurve,
        total_steps=100,
        plateaus=[(0, 5), pair],
    )


@pytest.mark.parametrize("name", ["plateaus", "absolute_plateaus"])
@pytest.mark.parametrize(
    "pair", [(50,), (50, 10, 5), 50, "50", None, (), (50, None), (50, "10"), (50, True), (50, 1j)]
)
def test_what_is_not_a_pair_of_numbers(name, pair):
    refuses(TypeError, f"{name}[0] = {pair!r}", call=PlateauCurve, total_steps=100, **{name: [pair]})


@pytest.mark.parametrize("name", ["plateaus", "absolute_plateaus"])
@pytest.mark.parametrize("value", [None, 50, "50", (50, 10), {50: 10}, np.array(50)])
def test_what_is_not_a_sequence_of_pairs(name, value):
    refuses(
        TypeError,
        name,
        "pair",
        "50" if value else "None",
        call=PlateauCurve,
        total_steps=100,
        **{name: value},
    )


UNORDERED = [{85, 10}, frozenset((85, 10)), {85: 0, 10: 0}, {85: 0, 10: 0}.keys(), {0: 85, 1: 10}.values()]


@pytest.mark.parametrize("name", ["plateaus", "absolute_plateaus"])
@pytest.mark.parametrize("pair", UNORDERED, ids=repr)
def test_a_pair_without_an_order(name, pair):
    refuses(TypeError, f"{name}[0] = {pair!r}", "pair", call=PlateauCurve, total_steps=100, **{name: [pair]})


@pytest.mark.parametrize("name", ["plateaus", "absolute_plateaus"])
@pytest.mark.parametrize(
    "value", [set(), {(85, 10)}, {(85, 10): 0}, {(85, 10): 0}.keys(), {85: 10}.items()], ids=repr
)
def test_pairs_without_an_order(name, value):
    refuses(TypeError, f"{name} = {value!r}", "pair", call=PlateauCurve, total_steps=100, **{name: value})


@pytest.mark.parametrize("name", ["plateaus", "absolute_plateaus"])
@pytest.mark.parametrize("pair", [[85, 10], np.array([85, 10]), range(85, 9, -75)], ids=repr)
def test_pairs_with_an_order(name, pair):
    curve = PlateauCurve(100, **{name: [pair]})
    assert getattr(curve, name) == ((85, 10),)


@pytest.mark.parametrize("pair", [(50.0, 10), (50, 10.5), (np.float64(50), 10)])
def test_an_absolute_plateau_of_fractional_steps(pair):
    refuses(
        TypeError,
        f"absolute_plateaus[0] = {pair!r}",
        "integer",
        call=PlateauCurve,
        total_steps=100,
        absolute_plateaus=[pair],
    )


@pytest.mark.parametrize("pair", [(-1, 5), (9, 5), (50, -1), (-(10**30), 2)])
def test_an_absolute_plateau_in_the_warmup_or_of_negative_length(pair):
    refuses(
        ValueError,
        f"absolute_plateaus[0] = {pair!r}",
        call=PlateauCurve,
        total_steps=100,
        warmup_steps=10,
        absolute_plateaus=[pair],
    )


@pytest.mark.parametrize(
    "plateaus",
    [
        {"plateaus": [(95, 10)]},
        {"plateaus": [(100, 1)]},
        {"absolute_plateaus": [(95, 10)]},
        {"absolute_plateaus": [(101, 0)]},
        {"absolute_plateaus": [(10, 10**30)]},
    ],
)
def test_a_plateau_that_runs_past_the_end(plateaus):
    (name, (pair,)) = next(iter(plateaus.items()))
    refuses(ValueError, name, str(pair), "total_steps = 100", call=PlateauCurve, total_steps=100, **plateaus)


@pytest.mark.parametrize(
    "plateaus",
    [
        {"plateaus": [(10, 20), (25, 10)]},
        {"plateaus": [(25, 10), (10, 20)]},
        {"plateaus": [(10, 20), (15, 0)]},
        {"plateaus": [(10, 20), (10, 20)]},
        {"absolute_plateaus": [(10, 20), (29, 10)]},
        {"plateaus": [(10, 20)], "absolute_plateaus": [(29, 5)]},
        {"plateaus": [(28, 5)], "absolute_plateaus": [(10, 20)]},
    ],
)
def test_overlapping_plateaus_are_both_named(plateaus):
    pairs = [str(pair) for several in plateaus.values() for pair in several]
    refuses(ValueError, *plateaus, *pairs, "overlap", call=PlateauCurve, total_steps=100, **plateaus)


@given(st.integers(1, MAX_STEP), st.data())
def test_no_step_left_to_decay(total, data):
    warmup = data.draw(st.integers(0, total - 1))
    length = total - warmup
    cut = data.draw(st.integers(0, length))
    refuses(
        ValueError,
        "plateaus",
        "decay",
        str(length),
        call=PlateauCurve,
        total_steps=total,
        warmup_steps=warmup,
        absolute_plateaus=[(warmup, cut), (warmup + cut, length - cut)],
    )


def test_percentages_that_leave_no_step_to_decay():
    refuses(ValueError, "plateaus", "decay", call=PlateauCurve, total_steps=100, plateaus=[(0, 50), (50, 50)])


OBJECTS = [np.array(items, object) for items in ([1, True], [1, 2.0], [1, None])]
ARRAYS = [*OBJECTS, np.arange(3.0), np.array([True]), [1.0, 2.0], [1, None], ["3"]]
SCALARS = [True, np.True_, 3.0, 2.5, np.float32(3), NAN, "3", b"3", None, 3j, Decimal(3), Fraction(3)]


@pytest.mark.parametrize("step", SCALARS + ARRAYS, ids=repr)
def test_a_step_that_is_not_an_integer(step):
    refuses(TypeError, "step", "integer", call=PlateauCurve(10), step=step)


@pytest.mark.parametrize("step", [True, 3.0, "3", [1.0, 2.0], [1, 2.0], [True, 2], [[1], [2, 3]]])
def test_a_wrong_step_is_shown(step):
    refuses(
        TypeError,
        f"step must be an integer or an array of integers, not {step!r}",
        call=PlateauCurve(10),
        step=step,
    )


def _changed(**changes):
    written = PlateauCurve(100).to_dict() | changes
    return {name: value for name, value in written.items() if value is not ...}


@pytest.mark.parametrize("name", PlateauCurve(100).to_dict())
def test_a_missing_key(name):
    if name == "total_steps":
        missing = "missing keys ['total_steps']"
        refuses(ValueError, missing, call=PlateauCurve.from_dict, arguments=_changed(total_steps=...))
    else:
        assert PlateauCurve.from_dict(_changed(**{name: ...})) == PlateauCurve(100)


def test_an_unknown_key():
    refuses(ValueError, "unknown", "'min_lr'", call=PlateauCurve.from_dict, arguments=_changed(min_lr=0.1))


def test_json_values_are_checked_too():
    refuses(
        TypeError, "total_steps = 100.0", call=PlateauCurve.from_dict, arguments=_changed(total_steps=100.0)
    )
    refuses(
        ValueError,
        "plateaus[0] = [50, 200]",
        call=PlateauCurve.from_dict,
        arguments=_changed(plateaus=[[50, 200]]),
    )


@pytest.mark.parametrize("value", [None, [], "{}", 5])
def test_json_that_is_no_mapping(value):
    refuses(TypeError, repr(value), call=PlateauCurve.from_dict, arguments=value)


def _shown(value):
    return re.sub(r"^np\.float32\((.*)\)$", r"\1", repr(value))


@pytest.mark.parametrize("kind", [np.str_, type("Name", (str,), {})])
@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_shape_is_a_plain_string(kind, shape):
    curve = PlateauCurve(100, warmup_shape=kind(shape), decay_shape=kind(shape))
    assert type(curve.warmup_shape) is type(curve.decay_shape) is str
    assert eval(repr(curve)) == curve == PlateauCurve(100, warmup_shape=shape, decay_shape=shape)


@pytest.mark.parametrize("kind", [float, np.float64, np.float32, type("Number", (float,), {})])
@given(st.sampled_from((-0.0, 0.0, 0.25)))
def test_a_number_is_a_plain_one_and_zero_has_no_sign(kind, value):
    curve = PlateauCurve(100, min_lr_ratio=kind(value), init_lr_ratio=kind(value))
    for ratio in (curve.min_lr_ratio, curve.init_lr_ratio):
        assert type(ratio) is float
        assert repr(ratio) == repr(abs(value))


@pytest.mark.parametrize("value", [Fraction(1, 2), Decimal("0.5")], ids=repr)
def test_numbers_of_other_kinds_are_told_what_to_write(value):
    message = f"min_lr_ratio = {value!r} must be a number: write float({value!r})"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        PlateauCurve(100, min_lr_ratio=value)
