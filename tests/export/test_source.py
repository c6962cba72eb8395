"""`Curve.to_source`: the written file against the curve, on its own, and its errors."""

import ast
import json
import re
import runpy
from math import cos, nan, pi, sqrt

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, curves_and_steps, descriptions
from support.curves.requirements import A_PEAK
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.golden.curves import CURVES
from support.numerics.shapes import SAMPLES
from support.raises import raises
from support.schedulers.runs import peaks

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.table.evaluation import PYTHON, evaluate

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1)


def functions_of(source):
    """Return the names that the file defines."""
    names = {}
    exec(source, names)
    return names


def value_in_file(functions, step):
    """Return the integer that the file rounds to float32."""
    values = []

    def record(value, exponent):
        values.append(value)
        return 0.0

    rounding = functions["round_to_float32"]
    functions["round_to_float32"] = record
    functions["multiplier"](step)
    functions["round_to_float32"] = rounding
    (value,) = values
    return value


# The same bits.

cases = curves_and_steps() | curves_and_steps(scaled=True)


@examples(100)
@given(cases, peaks)
def test_file_returns_the_same_bits(case, peak):
    curve, steps = case
    functions = functions_of(curve.to_source())
    multiplier = functions["multiplier"]
    multipliers = [multiplier(step) for step in steps.tolist()]
    assert multipliers == curve(steps).tolist()
    learning_rate = functions["learning_rate"]
    lrs = [learning_rate(step, peak) for step in steps.tolist()]
    assert lrs == curve.learning_rate(steps, peak).tolist()


@examples(40)
@given(cases)
def test_file_computes_the_same_integers(case):
    """A float32 near 1 stands for 2³⁸ integers: few of them would show a wrong one."""
    curve, steps = case
    functions = functions_of(curve.to_source())
    unrounded = PYTHON._replace(to_float32=lambda value, exponent, piece: value)
    for step in steps.clip(0, MAX_STEP).tolist():
        value = evaluate(unrounded, curve._python_table, step)
        assert value_in_file(functions, step) == value


@examples(40)
@given(descriptions(), st.integers())
@example({"kind": "plateau", "total_steps": 1}, 2**31)
@example({"kind": "plateau", "total_steps": 1}, 0)
@example({"kind": "plateau", "total_steps": MAX_STEP}, MAX_STEP)
@example({"kind": "staged", "stages": [(5, 1.0)], "start": 1.0}, -(2**70))
@example({"kind": "plateau", "total_steps": 100}, np.int64(99))
def test_any_integer_is_a_step(description, step):
    curve = build(description)
    multiplier = functions_of(curve.to_source())["multiplier"]
    value = multiplier(step)
    assert type(value) is float
    assert value == curve(step)


# The file alone.


def check_itself(path):
    """Run the file as a program."""
    runpy.run_path(str(path), run_name="__main__")


@examples(30)
@given(descriptions(scaled=True))
def test_file_checks_itself(tmp_path_factory, description):
    path = tmp_path_factory.mktemp("export") / "schedule.py"
    curve = build(description)
    path.write_text(curve.to_source())
    check_itself(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0x18CCCCC000000000", "0x18CCCCE000000000"),
        ("rounded += 1", "rounded += 0"),
        ("rounded_peak * multiplier", "peak * multiplier"),
    ],
)
def test_damaged_file_fails(tmp_path, before, after):
    path = tmp_path / "schedule.py"
    source = CURVE.to_source()
    assert before in source
    path.write_text(source.replace(before, after))
    with pytest.raises(SystemExit, match=r"FAILED: the check value is [0-9]+, not [0-9]+"):
        check_itself(path)


@pytest.mark.parametrize("name", CURVES)
def test_file_is_plain_python(name):
    source = CURVES[name].to_source()
    assert source.isascii()
    assert max(map(len, source.splitlines())) <= 100
    imported = set()
    for node in ast.walk(ast.parse(source, feature_version=(3, 9))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"bisect", "struct"}


@examples(40)
@given(descriptions(scaled=True))
def test_every_segment_has_a_comment(description):
    curve = build(description)
    source = curve.to_source()
    comments = re.findall(r"(?m)^    # (\w+), (?:steps ([0-9]+)-[0-9]+|from step ([0-9]+))", source)
    firsts = [int(first or last) for _, first, last in comments]
    assert firsts == [segment.first_step for segment in curve.segments]


@pytest.mark.parametrize("shape", SAMPLES)
def test_comment_has_the_equation(shape):
    """Evaluated as Python, at the steps of a segment that is cut at its start."""
    curve = StagedCurve([(100, 0.25, shape)], start=0.75).part(30)
    source = curve.to_source().replace("\n    # ", " ")
    comment = re.search(
        r"steps 0-69, [^:]*: (.*?); a = (\S+), b = (\S+), x = (\S+ ?\S* ?\S*)/100", source
    )
    assert comment
    equation, a, b, elapsed = comment.groups()
    names = {"a": float(a), "b": float(b), "sqrt": sqrt, "cos": cos, "pi": pi}
    for step in (1, 17, 69):
        level, _, t = equation.partition(", t = ")
        names["x"] = eval(elapsed, {"step": step}) / 100
        if t:
            names["t"] = eval(t, {}, names)
        assert eval(level, {}, names) == pytest.approx(curve(step), rel=1e-6)


# Its header.


def json_of(source):
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    _, curve, *_ = docstring.split("\n\n")
    return curve


@examples(40)
@given(descriptions(scaled=True))
def test_header_contains_the_curve(description):
    curve = build(description)
    arguments = json.loads(json_of(curve.to_source()))
    with ignore_curve_warnings():
        assert Curve.from_dict(arguments) == curve


def test_header_names_version_and_unit():
    scaled = CURVES["scaled"].to_source()
    assert scaled.startswith('"""A learning-rate schedule, written by plateau-jax 0.')
    assert "\nSamples or tokens per step: 8.\nPython 3.9 or later" in scaled
    assert "Samples" not in CURVE.to_source()


# Wrong steps and peaks.


def rejects(function, *arguments):
    """Return True if the function raises one of the errors for a wrong number."""
    try:
        function(*arguments)
    except (TypeError, ValueError, OverflowError):
        return True
    return False


@pytest.mark.parametrize("step", [True, 3.0, "3"], ids=repr)
def test_file_rejects_the_steps_that_the_curve_rejects(step):
    functions = functions_of(CURVE.to_source())
    message = "step must be an integer, not "
    with pytest.raises(TypeError, match=message):
        functions["multiplier"](step)
    with pytest.raises(TypeError, match=message):
        functions["learning_rate"](step, 0.1)


@examples(40)
@given(
    st.one_of(
        st.floats(),
        st.integers(),
        st.integers(2**126, 2**129),
        st.floats(2.0**-127, 2.0**-125),
        st.floats(3.4e38, 3.5e38),
        st.sampled_from((0, -0.0, -1, True, "0.1", None, 1j, [0.1], 10**400)),
    )
)
@example(2**128 - 2**103)
@example(2**128 - 2**103 - 1)
@example(float(2**128 - 2**103 - 2**76))
@example(2.0**-126)
@example(np.nextafter(2.0**-126, 0))
def test_file_rejects_the_peaks_that_the_curve_rejects(peak):
    learning_rate = functions_of(CURVE.to_source())["learning_rate"]
    is_rejected = rejects(learning_rate, 150, peak)
    assert is_rejected == rejects(CURVE.learning_rate, 150, peak)
    if not is_rejected:
        lr = learning_rate(150, peak)
        assert repr(lr) == repr(CURVE.learning_rate(150, peak))


@examples(40)
@given(peaks, st.integers(0, 1000))
def test_peak_is_the_default_of_the_file(peak, step):
    learning_rate = functions_of(CURVE.to_source(peak))["learning_rate"]
    assert learning_rate(step) == CURVE.learning_rate(step, peak)
    assert learning_rate(step, 0.5) == CURVE.learning_rate(step, 0.5)


@raises(ValueError, f"peak_value = nan {A_PEAK}")
def test_peak_of_a_file_is_out_of_range():
    CURVE.to_source(nan)
