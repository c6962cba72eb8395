"""`Curve.to_source`: the written file against the curve, on its own, and its errors."""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from proofs.shapes.specs import SAMPLES
from support.curves.descriptions import CurveAndSteps, build, curves_and_steps, descriptions
from support.curves.strategies import MAX_STEP
from support.examples import examples
from support.golden.curves import CURVES
from support.numerics.borders import steps_at_borders
from support.numerics.oracle import Description
from support.schedulers.runs import peaks
from support.wrong import wrong

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.curves.curve import Curve as AnyKind
from plateau_jax.export import template
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.table.fixed_point import fixed_values

CURVE = PlateauCurve(1000, warmup_steps=100, plateaus=[(20, 10), (60, 30)], min_lr_ratio=0.1)


def functions_of(source: str) -> dict[str, Any]:
    """Return the names that the file defines."""
    names: dict[str, Any] = {}
    exec(source, names)
    return names


def integers_of(curve: Curve, steps: Any) -> list[int]:
    """Return the integers behind the multipliers, in units of 2⁻⁶²."""
    return fixed_values(curve._decoded, steps).tolist()


def value_in_file(functions: dict[str, Any], step: int) -> int | None:
    """Return the integer that the file rounds to float32; None if it returns the start level."""
    begun = [segment for segment in functions["SEGMENTS"] if segment[0] <= step]
    first_step, _, shape, numbers = begun[-1]
    if not numbers or step == first_step - numbers[0]:
        return None
    skipped, *numbers_of_shape = numbers
    value = functions["SHAPES"][shape](step - first_step + skipped, *numbers_of_shape)
    shift = functions.get("SHIFTS", {}).get(first_step, 0)
    return min(value << shift, 2**62)


# The same bits.

cases = curves_and_steps() | curves_and_steps(scaled=True)


@examples(100)
@given(cases, peaks)
def test_file_returns_the_same_bits(case: CurveAndSteps, peak: float) -> None:
    curve, steps = case
    functions = functions_of(curve.to_source())
    multiplier = functions["multiplier"]
    multipliers = [multiplier(step) for step in steps.tolist()]
    assert multipliers == curve(steps).tolist()
    learning_rate = functions["learning_rate"]
    lrs = [learning_rate(step, peak) for step in steps.tolist()]
    assert lrs == curve.learning_rate(steps, peak).tolist()


@examples(100)
@given(cases)
def test_file_computes_the_same_integers(case: CurveAndSteps) -> None:
    """A float32 near 1 stands for 2³⁸ integers: few of them would show a wrong one."""
    curve, steps = case
    functions = functions_of(curve.to_source())
    clamped = steps.clip(0, MAX_STEP)
    values = integers_of(curve, clamped)
    for step, value in zip(clamped.tolist(), values, strict=True):
        assert value_in_file(functions, step) in (None, value)


@pytest.mark.parametrize("shape", SHAPES)
@examples(40)
@given(data=st.data())
def test_file_rounds_as_the_curve_next_to_borders(shape: str, data: st.DataObject) -> None:
    description, step = data.draw(steps_at_borders((shape,)))
    curve = build(description)
    multiplier = functions_of(curve.to_source())["multiplier"]
    assert multiplier(step) == curve(step)


@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "exponential", "(1-x)^3", "t^-1", "t^-4"])
@examples(40)
@given(st.integers(1, MAX_STEP), st.integers(1, 40), st.booleans(), st.data())
def test_nearly_equal_levels(
    shape: str, length: int, bits: int, rises: bool, data: st.DataObject
) -> None:
    """Between such levels t^-P becomes a parabola, and integers may be the same at both ends."""
    start = 0.75
    end = 0.75 - 2.0**-bits
    if rises:
        start, end = end, start
    curve = StagedCurve([(length, end, shape)], start=start)
    step = data.draw(st.integers(0, length))
    functions = functions_of(curve.to_source())
    assert functions["multiplier"](step) == curve(step)
    (value,) = integers_of(curve, np.array([step], np.int32))
    assert value_in_file(functions, step) in (None, value)


@examples(40)
@given(descriptions(), st.integers())
@example({"total_steps": 1}, 2**31)
@example({"total_steps": 1}, 0)
@example({"total_steps": MAX_STEP}, MAX_STEP)
@example({"stages": [(5, 1.0)], "start": 1.0}, -(2**70))
def test_any_integer_is_a_step(description: Description, step: int) -> None:
    curve = build(description)
    multiplier = functions_of(curve.to_source())["multiplier"]
    value = multiplier(step)
    assert type(value) is float
    assert value == curve(step)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64])
def test_numpy_integers_are_steps(dtype: type[np.integer[Any]]) -> None:
    multiplier = functions_of(CURVE.to_source())["multiplier"]
    value = multiplier(dtype(99))
    assert type(value) is float
    assert value == CURVE(99)


# The file alone.


def check_itself(path: Path) -> None:
    """Run the file as a program."""
    runpy.run_path(str(path), run_name="__main__")


@examples(30)
@given(descriptions(scaled=True))
def test_file_checks_itself(
    tmp_path_factory: pytest.TempPathFactory, description: Description
) -> None:
    path = tmp_path_factory.mktemp("export") / "schedule.py"
    curve = build(description)
    path.write_text(curve.to_source())
    check_itself(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0x4000000000000000", "0x4000010000000000"),
        ("0x14ABBCE625BE52BF", "0x14ABBCF625BE52BF"),
        ("(100, 1.0", "(101, 1.0"),
        ("(1 << 93)", "(1 << 92)"),
        ("rounded += 1", "rounded += 0"),
        ("return near - distance", "return near - distance - (1 << 40)"),
    ],
)
def test_damaged_file_fails(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "schedule.py"
    source = CURVE.to_source()
    assert before in source
    path.write_text(source.replace(before, after))
    with pytest.raises(SystemExit, match=r"FAILED: the check value is [0-9]+, not [0-9]+"):
        check_itself(path)


def check_program(command: list[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert re.fullmatch("ok: [0-9]+ multipliers have the check value [0-9]+\n", process.stdout)


@pytest.mark.slow
def test_damaged_program_fails(tmp_path: Path) -> None:
    path = tmp_path / "schedule.py"
    damaged = CURVE.to_source().replace("1 << 93", "1 << 92")
    path.write_text(damaged)
    process = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith("FAILED: the check value is ")


@pytest.mark.slow
def test_file_runs_on_every_installed_python(tmp_path: Path) -> None:
    for python in installed_pythons():
        for name, curve in CURVES.items():
            path = tmp_path / f"{name}.py"
            path.write_text(curve.to_source())
            # Without the packages that are installed there, and without the current directory.
            check_program([python, "-I", "-S", "-W", "error", str(path)])


def installed_pythons() -> Iterator[str]:
    """Yield the interpreters that the file should run on."""
    yield sys.executable
    for minor in range(9, 20):
        python = shutil.which(f"python3.{minor}")
        if python is None:
            continue
        # A shim may stand for a version that is not installed.
        process = subprocess.run([python, "--version"], capture_output=True)
        if process.returncode == 0:
            yield python


@pytest.mark.parametrize("name", CURVES)
def test_file_is_plain_python(name: str) -> None:
    source = CURVES[name].to_source()
    assert source.isascii()
    assert max(map(len, source.splitlines())) <= 100
    imported = set()
    module = ast.parse(source, feature_version=(3, 9))
    for node in ast.walk(module):
        assert not isinstance(node, ast.ImportFrom)
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert imported <= {"math", "struct"}


def defined_names(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case _:
                pass
    return names


@pytest.mark.parametrize("name", CURVES)
def test_file_defines_only_what_it_uses(name: str) -> None:
    source = CURVES[name].to_source()
    for defined in defined_names(source) - {"learning_rate"}:
        uses = re.findall(rf"\b{defined}\b", source)
        assert len(uses) > 1, defined
    functions = functions_of(source)
    shapes = {segment[2] for segment in functions["SEGMENTS"]}
    assert functions["SHAPES"].keys() == shapes - {"flat"}


def lines_besides_the_table(source: str) -> int:
    """Return the number of lines without those of the segments and of the curve's JSON."""
    table = re.search(r"SEGMENTS = \[\n(.*?)\n\]", source, re.DOTALL)
    assert table
    text = source.replace(table.group(1), "")
    return len(text.splitlines()) - len(json_of(source).splitlines())


@pytest.mark.parametrize(
    ("most_lines", "shapes"),
    [
        (125, ["linear", "cosine"]),
        (125, ["linear", "1-sqrt"]),
        (145, ["linear", "1-x^2.5"]),
        (150, ["linear", "(1-x)^0.5"]),
        (145, ["linear", "exponential"]),
        (160, ["linear", "t^-0.5"]),
        (145, ["linear", "cosine", "1-sqrt"]),
    ],
)
def test_length_of_the_file(most_lines: int, shapes: list[str]) -> None:
    stages = [(100, 0.9**number, shape) for number, shape in enumerate(shapes, 1)]
    last = 100, 0.1, shapes[-1]
    curve = StagedCurve([*stages, last], start=0.9 - 1e-9)
    assert lines_besides_the_table(curve.to_source()) <= most_lines


def test_length_of_a_file_with_every_shape() -> None:
    stages = [(100, 0.9 - index / 100, shape) for index, shape in enumerate(SAMPLES)]
    # Two levels so close that a table stores them as one.
    inverse = [(100, 0.3, "t^-1"), (100, 0.3 - 1e-9, "t^-1")]
    curve = StagedCurve([*stages, *inverse], start=1.0)
    source = curve.to_source()
    assert functions_of(source)["SHAPES"].keys() == template.SHAPES.keys()
    assert lines_besides_the_table(source) <= 240


# Its header.


def json_of(source: str) -> str:
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    _, curve, *_ = docstring.split("\n\n")
    return curve


@examples(40)
@given(descriptions(scaled=True))
def test_header_contains_the_curve(description: Description) -> None:
    curve = build(description)
    arguments = json.loads(json_of(curve.to_source()))
    with suppress_warnings():
        assert Curve.from_dict(arguments) == curve


def test_header_names_version_and_unit() -> None:
    scaled = CURVES["scaled"].to_source()
    assert scaled.startswith('"""A learning-rate schedule, written by plateau-jax 1.')
    assert "\nSamples or tokens per step: 8.\nPython 3.9 or later" in scaled
    assert "Samples" not in CURVE.to_source()


# Wrong steps and peaks.


def rejects(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return True if the function raises one of the errors for a wrong number."""
    try:
        function(*arguments)
    except (TypeError, ValueError, OverflowError):
        return True
    return False


@pytest.mark.parametrize("step", [True, 3.0, nan, "3", b"3", None, 3j, [1], (2,)], ids=repr)
def test_file_rejects_the_steps_that_the_curve_rejects(step: Any) -> None:
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
def test_file_rejects_the_peaks_that_the_curve_rejects(peak: Any) -> None:
    learning_rate = functions_of(CURVE.to_source())["learning_rate"]
    is_rejected = rejects(learning_rate, 150, peak)
    assert is_rejected == rejects(CURVE.learning_rate, 150, peak)
    if not is_rejected:
        lr = learning_rate(150, peak)
        assert repr(lr) == repr(CURVE.learning_rate(150, peak))


@pytest.mark.parametrize("peak", [True, "0.1", b"1", None, [0.1]], ids=repr)
def test_file_rejects_a_peak_that_is_not_a_number(peak: Any) -> None:
    learning_rate = functions_of(CURVE.to_source())["learning_rate"]
    with pytest.raises(TypeError, match="peak must be a number, not "):
        learning_rate(150, peak)


@examples(40)
@given(peaks, st.integers(0, 1000))
def test_peak_is_the_default_of_the_file(peak: float, step: int) -> None:
    learning_rate = functions_of(CURVE.to_source(peak))["learning_rate"]
    assert learning_rate(step) == CURVE.learning_rate(step, peak)
    assert learning_rate(step, 0.5) == CURVE.learning_rate(step, 0.5)


def test_peak_has_no_default_without_one() -> None:
    learning_rate = functions_of(CURVE.to_source())["learning_rate"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'peak'"):
        learning_rate(3)


@pytest.fixture
def curve() -> AnyKind:
    return CURVE


@pytest.mark.parametrize("peak", ["0.1", True, 1j], ids=repr)
@wrong(TypeError, "peak_value = {peak}", "number")
def test_peak_of_a_file_is_not_a_number(curve: AnyKind, peak: Any) -> None:
    curve.to_source(peak)


@pytest.mark.parametrize("peak", [nan, inf, -1.0, 1e-40])
@wrong(ValueError, "peak_value = {peak}", "be 0, or a finite float32")
def test_peak_of_a_file_is_out_of_range(curve: AnyKind, peak: float) -> None:
    curve.to_source(peak)


# The template.


def test_template_has_every_shape() -> None:
    names = {shape.partition("^")[0] for shape in template.SHAPES}
    assert {shape.partition("^")[0] for shape in SHAPES} == names - {"parabola"}


def test_template_checks_itself() -> None:
    check_itself(Path(template.__file__))
