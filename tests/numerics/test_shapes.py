"""Shapes written as formulas: their spellings, which of them are equal, and which are rejected."""

import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.numerics.oracle import Oracle, is_nearest_float32

from plateau_jax import Curve, PlateauCurve, Stage, StagedCurve

NAMES = ["1-x^", "(1-x)^", "t^-"]
KINDS = {kind.__name__: kind for kind in (PlateauCurve, Stage, StagedCurve)}


def staged(shape):
    return StagedCurve([(50, 0.1, shape), (30, 0.3, shape)], start=0.9)


def curves_with(shape):
    """Return a curve for each way to use a shape."""
    stable = StagedCurve([(10, 1.0)])
    return [staged(shape), stable.cooldown(5, 20, to=0.1, shape=shape)] + (
        [] if shape.startswith("t") else [PlateauCurve(90, plateaus=[(30, 20)], decay_shape=shape)]
    )


@pytest.mark.parametrize(
    ("shape", "same"),
    [
        ("1-x^0.5", "1-sqrt"),
        ("1-x^.5", "1-sqrt"),
        ("1-x^0.500", "1-sqrt"),
        ("1-x^1", "linear"),
        ("(1-x)^1", "linear"),
        ("(1-x)^1.000", "linear"),
        ("1-x^2.0", "1-x^2"),
        ("1-x^2.", "1-x^2"),
        ("1-x^02.50", "1-x^2.5"),
        ("(1-x)^.5", "(1-x)^0.5"),
        ("(1-x)^20.0", "(1-x)^20"),
        ("t^-1.0", "t^-1"),
        ("t^-.25", "t^-0.25"),
    ],
)
def test_spellings_of_one_power_are_equal(shape, same):
    for one, other in zip(curves_with(shape), curves_with(same), strict=True):
        assert one == other
        assert hash(one) == hash(other)
        assert one.to_dict() == other.to_dict()
        assert repr(one) == repr(other)
        assert one.rows == other.rows
        assert one.same_until(other, 2**31)
        np.testing.assert_equal(one.segments.columns(), other.segments.columns())


@given(st.sampled_from(NAMES), st.decimals(0, 25, places=4), st.integers(0, 3))
def test_power_must_lie_in_range(name, power, zeros):
    shape = f"{name}{power:f}{'0' * zeros}"
    low, high = (Decimal("0.25"), 4) if name == "t^-" else (Decimal("0.05"), 20)
    if not low <= power <= high:
        with pytest.raises(ValueError, match=r"^stages\[0\].shape = '.*' must have a P in \["):
            staged(shape)
        return
    for curve in curves_with(shape):
        assert Curve.from_dict(curve.to_dict()) == curve == eval(repr(curve), KINDS)
    (stage, _) = staged(shape).stages
    assert stage.shape == staged(stage.shape).stages[0].shape


@given(st.floats(0.25, 4))
def test_formula_accepts_printed_floats(power):
    for name in NAMES:
        assert staged(f"{name}{power}") == staged(f"{name}{Decimal(repr(power)):f}0")


NO_DECIMALS = [
    *(
        "",
        "P",
        "x",
        "1e-1",
        "2e0",
        "+2",
        "-2",
        " 2",
        "2 ",
        "2\n",
        "1/2",
        "1,5",
        "1_0",
        "½",
        "٢",
        ".",
        "1.5.2",
    ),
    *("inf", "nan", "0x2", "2" * 10**6, "0.5" + "0" * 30),
]
KNOWN = "must be one of 'linear', 'cosine', '1-sqrt', 'exponential', '1-x^P', '(1-x)^P', 't^-P', with a "
UNKNOWN = ["x^2", "1 - x^2", "1-x**2", "1-X^2", "t^2", "(1-x)2", "1-x", "", "sqrt", None, 2, "a" * 10**6]
MESSAGES = [
    *((f"{name}{power}", r"shape = .* must have a decimal for P .*, as in '")
      for name in NAMES for power in NO_DECIMALS),
    *((shape, r"shape = .* must be one of 'linear', 'cosine', '1-sqrt'.*decimal for P, such as '1-x\^2'")
      for shape in [*UNKNOWN, ["1-x^2"] * 10**5]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_wrong_shapes_are_named(shape, message):
    stable = StagedCurve([(10,)], start=1)
    for name, call in (
        (r"stages\[0\].", lambda: staged(shape)),
        ("", lambda: stable.cooldown(5, 5, to=0.1, shape=shape)),
        ("decay_", lambda: PlateauCurve(10, decay_shape=shape)),
    ):
        if not (name == "decay_" and isinstance(shape, str) and shape.startswith("t^-")):
            with pytest.raises(ValueError, match=f"^{name}{message}"):
                call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: staged("x^2"), re.escape(f"{KNOWN}decimal for P, such as '1-x^2'")),
        (lambda: PlateauCurve(10, decay_shape="t^-1"), r"^decay_shape = 't\^-1' must be one of 'linear'"),
        (
            lambda: PlateauCurve(10, warmup_steps=5, warmup_shape="1-x^2"),
            r"^warmup_shape = '1-x\^2' must be one of 'linear', 'cosine'$",
        ),
        *(
            (
                lambda to=to, start=start: StagedCurve([(5, to, "t^-2")], start=start),
                r"^stages\[0\].shape = 't\^-2': a t\^-2 stage from or to 0 is not defined$",
            )
            for to, start in ((0, 1), (1, 0), (0, 0))
        ),
        (
            lambda: StagedCurve([(10,)], start=1).cooldown(5, 5, shape="t^-2"),
            r"^shape = 't\^-2': a t\^-2 cooldown from or to 0 is not defined$",
        ),
    ],
)
def test_shapes_that_do_not_suit_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("power", ["0.25", "0.5", "1", "2"])
def test_inverse_power_rejects_distant_levels(power):
    shape, most = f"t^-{power}", 62 * float(power)
    low = 2.0**-most  # for P = 0.25 only near 2⁻¹⁵·⁵
    nearer, farther = (float(f"{low * factor:.3g}") for factor in (1.01, 0.99))
    message = (
        rf"between these levels is too steep: the lower one must be at least 2\*\*-{most:g} times the higher"
    )
    for levels_of in (lambda level: (1, level), lambda level: (level, 1)):
        start, end = levels_of(nearer)
        assert StagedCurve([(9, end, shape)], start=start)(9) == np.float32(end)
        start, end = levels_of(farther)
        with pytest.raises(ValueError, match=rf"^stages\[0\].shape = .*: a t\^-{power} stage {message}"):
            StagedCurve([(9, end, shape)], start=start)
    with pytest.raises(ValueError, match=rf"^shape = .*: a t\^-{power} cooldown {message}"):
        StagedCurve([(9,)], start=1).cooldown(5, 5, to=farther, shape=shape)


def test_base_ratio_of_2_to_the_62_is_accepted():
    curve = StagedCurve([(9, 2.0**-31, "t^-0.5")], start=1.0)
    assert curve(range(9)).tolist() == sorted(curve(range(9)), reverse=True)


@pytest.mark.parametrize(
    ("curve", "at", "level"),
    [
        (StagedCurve([(4, 0.2, "1-x^2")], start=1.0), 2, 0.8),
        (StagedCurve([(4, 0.2, "(1-x)^2")], start=1.0), 2, 0.4),
        (StagedCurve([(15, 0.25, "t^-0.5")], start=1.0), 3, 0.5),
        (StagedCurve([(2, 0.2, "t^-1")], start=0.3), 1, 0.24),
        (StagedCurve([(9_999, 0.0005, "t^-0.75")], start=0.5), 15, 0.0625),
        (PlateauCurve(20, absolute_plateaus=[(10, 5)], decay_shape="1-x^2", min_lr_ratio=0.1), 12, 0.6),
        (PlateauCurve(100, decay_shape="(1-x)^2"), 66, 0.1156),
    ],
)
def test_cooldown_to_exact_level_of_power_is_flat(curve, at, level):
    assert curve._level_at(at) == Decimal(repr(level))
    flat = curve.cooldown(at, 10, to=level)
    assert set(flat(range(at, at + 20))) == {np.float32(level)}
    assert curve.cooldown(at, 10, to=level, shape="1-x^2").rows[-2].holds
    for shape in ("exponential", "t^-0.5"):
        tables = (
            parent.cooldown(first, 8, to=level / 4, shape=shape).segments.columns()
            for parent, first in ((curve, at), (StagedCurve([(1,)], start=level), 1))
        )
        computed, written = ({name: column[-2] for name, column in table.items()} for table in tables)
        assert computed == {**computed, **written, "begin": at}
    with pytest.raises(ValueError, match="to"):
        curve.cooldown(at, 10, to=float(np.nextafter(level, 1)))


def test_cooldown_from_tiny_level_of_power():
    """(1-x)^20 falls to 10⁻¹⁷⁸ on its last step, which is less than 224 bits can hold."""
    parent = {"stages": [(10**9, 0, "(1-x)^20")], "start": 1.0}
    cooldown = {"cooldown": parent, "at": 10**9 - 1, "steps": 5, "to": 1e-300, "shape": "exponential"}
    curve = StagedCurve([(10**9, 0, "(1-x)^20")], start=1.0).cooldown(
        10**9 - 1, 5, to=1e-300, shape="exponential"
    )
    for step in range(10**9 - 1, 10**9 + 5):
        assert is_nearest_float32(np.float32(curve(step)), Oracle(cooldown)(step))


@given(st.sampled_from(NAMES), st.integers(25, 400).map(lambda power: power / 100))
def test_description_and_picture_name_formula(name, power):
    shape = staged(f"{name}{power}").stages[0].shape
    curve = staged(shape)
    assert f"{shape} stage" in curve.describe()
    assert f"{shape} to 0.1 in 50" in curve._legend_phrases()
    assert shape in curve._repr_html_()
