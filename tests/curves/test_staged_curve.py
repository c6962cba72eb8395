"""`StagedCurve`: its checks, its stages as plain numbers, and its table."""

import re
from fractions import Fraction

import jax
import numpy as np
import pytest
from support.curves.strategies import MAX_STEP

from plateau_jax import Stage, StagedCurve, multiplier
from plateau_jax.validation.curve_warning import suppress_warnings

NAN, INF = float("nan"), float("inf")
NO_LEVELS = True, "0.5", 0j, [0.5]


NO_STAGES = [None, 5, "stages", {10, 20}, {10: 0.5}, [5], ["ab"], [None], [()], [(1, 0.5, "linear", 2)]]
REJECTED = [
    *((TypeError, stages, 0.0, "stages") for stages in (*NO_STAGES, [{10, 0.5}], np.array(5), [np.array(5)])),
    *(
        (TypeError, [(5,), (steps, 0.5)], 0.0, rf"stages\[1\].steps = {steps!r} must be an integer")
        for steps in (True, 1.0, "1", None, NAN)
    ),
    (ValueError, [(5,), (-1, 0.5)], 0.0, r"stages\[1\].steps = -1 must be at least 0"),
    *(
        (error, stages, start, message)
        for error, wrong in ((ValueError, (-0.1, 1.0000000000000002, 2, NAN, INF)), (TypeError, NO_LEVELS))
        for level in wrong
        for stages, start, message in (
            ([(5, level)], 0.0, rf"stages\[0\].to = {re.escape(repr(level))} must"),
            ([(5, 1)], level, f"start = {re.escape(repr(level))} must"),
        )
    ),
    # A shape is checked even if it has no effect.
    *(
        (ValueError, [stage], 0.0, r"stages\[0\].shape = .* must be one of 'linear', 'cosine'")
        for stage in [(5, 0.5, "sqrt"), (5, None, "Linear"), (0, 0.5, None), (5, 0.5, ["cosine"])]
    ),
    *(
        (
            ValueError,
            stages,
            0.0,
            rf"stages add up to {sum(steps for steps, *_ in stages)} steps, .*{MAX_STEP}",
        )
        for stages in ([], [(0, 1.0)], [(0, 0.5), (0, 1.0)], [(MAX_STEP,), (1,)], [(10**30,)])
    ),
    *(
        (
            ValueError,
            [(5, to, "exponential")],
            start,
            r"stages\[0\].shape = 'exponential': an exponential stage from or to 0",
        )
        for to, start in ((0, 1), (0.5, 0), (0, 0))
    ),
]


@pytest.mark.parametrize(("error", "stages", "start", "message"), REJECTED, ids=str)
def test_invalid_stages_are_rejected(error, stages, start, message):
    with pytest.raises(error, match=f"^{message}"):
        StagedCurve(stages, start=start)


def test_exponential_that_holds_or_jumps_has_no_columns():
    curve = StagedCurve([(5, None, "exponential"), (0, 0.5, "exponential"), (0, 0, "exponential"), (5,)])
    assert curve(range(10)).tolist() == [0] * 10
    assert curve.segments.rate_whole is None


def test_stages_become_plain_numbers():
    curve = StagedCurve([[np.int64(5), np.float32(0.1)], (5, None), Stage(0, 1), (3,)], start=np.float64(0.3))
    assert curve.stages == ((5, 0.1, "linear"), (5, None, "linear"), (0, 1, "linear"), (3, None, "linear"))
    assert all(type(stage) is Stage for stage in curve.stages)
    assert type(curve.start) is float
    assert curve == StagedCurve(iter(curve.stages), start=0.3)
    assert curve.total_steps == 13


def test_describe_names_stages_holds_and_last_jump():
    curve = StagedCurve([(10, 1.0), (80,), (0, 0.5), (0, 0.8), (10, 0.1, "exponential")])
    assert curve.describe().splitlines() == [
        "first step  last step  kind                     from          to",
        "         0          9  linear stage                0           1",
        "        10         89  hold                        1           1",
        "        90         99  exponential stage         0.8         0.1",
        "       100          …  end                       0.1         0.1",
    ]


def test_table_has_row_per_stage_and_columns_of_its_shapes():
    linear = StagedCurve([(10, 1), (0, 0.5), (5,), (0, 0.2)])
    assert linear.segments.begin.tolist() == [0, 10, 10, 15, 15]
    assert len(linear.segments.columns()) == 10
    every = StagedCurve(
        [(9, 1, "cosine"), (9, 0.5, "1-sqrt"), (9, 0.1, "exponential"), (9, 0.2, "t^-2"), (9, 0, "1-x^2")]
    )
    assert linear.segments.columns().keys() < every.segments.columns().keys()
    for column in every.segments.columns().values():
        assert column.shape == (6,)
        assert column.dtype == np.int32
        assert not column.flags.writeable
    # A stage between equal levels keeps the columns of its shape.
    flat = StagedCurve([(9, 1, shape) for _, _, shape in every.stages], start=1)
    assert flat.segments.columns().keys() == every.segments.columns().keys()


def jitted_values():
    """Return the jitted `multiplier`, and a list that grows by one item per compilation."""
    compiled = []

    @jax.jit
    def values(table, steps):
        compiled.append(1)
        return multiplier(table, steps)

    return values, compiled


def test_traced_tables_change_without_recompilation():
    values, compiled = jitted_values()
    steps = np.arange(300, dtype=np.int32)
    for middle in (20, 1, 99):
        for level in (0.5, 0.25, 1.0, 1e-20):
            curve = StagedCurve([(100 - middle, 1), (middle, level, "exponential"), (50, 0, "1-sqrt")])
            for at in (1, middle, 120, 149):
                branch = curve.cooldown(at, 20)
                np.testing.assert_array_equal(values(branch.segments, steps), branch(steps))
    assert len(compiled) == 1


def test_powers_change_without_recompilation():
    values, compiled = jitted_values()
    steps = np.arange(120, dtype=np.int32)
    for first, second, third in (("0.3", "2", "0.5"), ("20", "0.05", "4"), ("1.7", "0.5", "0.25")):
        shapes = f"1-x^{first}", f"(1-x)^{second}", f"t^-{third}"
        # Nearly equal levels in the last stage take another code path.
        for levels in ((0.3, 0.7, 0.1), (0.3, 0.7, 0.7 + 1e-9)):
            stages = [(40, level, shape) for level, shape in zip(levels, shapes, strict=True)]
            curve = StagedCurve(stages, start=1.0)
            np.testing.assert_array_equal(values(curve.segments, steps), curve(steps))
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "shape",
    [
        "linear",
        "cosine",
        "1-sqrt",
        "exponential",
        "1-x^0.05",
        "1-x^20",
        "(1-x)^0.05",
        "(1-x)^20",
        "t^-2",
        "t^-4",
    ],
)
@pytest.mark.parametrize(
    ("low", "high"), [(1e-12, 2e-12), (1e-20, 1.5e-19), (1e-30, 1e-17), (2.0**-126, 2.0**-61)]
)
@pytest.mark.parametrize("length", [1000, 10**6, MAX_STEP])
@pytest.mark.filterwarnings("ignore:stages have levels:plateau_jax.CurveWarning")
def test_tiny_levels_are_monotone_in_both_directions(shape, low, high, length):
    for start, end in ((low, high), (high, low)):
        curve = StagedCurve([(length, end, shape)], start=start)
        for first in (0, length // 4, length // 2 - 500, length - 1000):
            values = curve(np.arange(first, first + 1001).clip(0, MAX_STEP))
            assert (np.sign(end - start) * np.diff(values) >= 0).all()
        assert curve(0) == np.float32(start)
        assert curve(length) == np.float32(end)


def test_border_of_tiny_levels_does_not_rise():
    """The first stage ends where the second begins, to the last bit of both."""
    with suppress_warnings():
        curve = StagedCurve([(130, 2.034716295652536e-16), (130, 0.0)], start=2.182832815997069e-16)
    assert np.diff(curve(np.arange(261))).max() <= 0


@pytest.mark.parametrize("power", [1.5, 2, 3, 7, 12.5, 16, 20])
@pytest.mark.parametrize("length", [2**10, 2**14, 3 * 2**12, 10_000])
def test_powers_are_monotone_at_every_step(power, length):
    # At x = 2^-k, far below 2⁻⁶², an integer power is a power of two: its logarithm has no fraction.
    rising = StagedCurve([(length, 1.0, f"1-x^{power}")], start=0.0)(range(length + 1))
    falling = StagedCurve([(length, 0.0, f"(1-x)^{power}")], start=1.0)(range(length + 1))
    assert (np.diff(rising) >= 0).all()
    assert (np.diff(falling) <= 0).all()


@pytest.mark.parametrize("shape", ["exponential", "t^-0.25", "t^-1", "t^-4"])
def test_slow_stages_are_monotone(shape):
    # From one step to the next these move by about the error of the arithmetic.
    for low in (0.5, 0.75, 1 - 2.0**-23):
        for width in (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 3e-7, 1e-6):
            for start, end in ((low, min(low + width, 1.0)), (min(low + width, 1.0), low)):
                curve = StagedCurve([(MAX_STEP, end, shape)], start=start)
                border = (Fraction(low) + Fraction(float(np.nextafter(np.float32(low), np.float32(1))))) / 2
                middle = int((border - Fraction(start)) / (Fraction(end) - Fraction(start)) * MAX_STEP)
                steps = np.clip(min(max(middle, 0), MAX_STEP) + np.arange(-5_000, 5_000), 0, MAX_STEP)
                values = curve(steps)
                assert (np.sign(end - start) * np.diff(values) >= 0).all()


def test_repr_names_all_arguments():
    curve = StagedCurve([(5, 1)], start=0.5)
    assert repr(curve) == "StagedCurve(stages=(Stage(steps=5, to=1, shape='linear'),), start=0.5)"
    assert repr(curve.cooldown(3, 1)) == f"{curve!r}.cooldown(3, 1, to=0.0, shape='1-sqrt')"
    assert repr(curve.then(curve)) == f"{curve!r}.then({curve!r}, scale=1.0)"
