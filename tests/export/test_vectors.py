"""Test vectors: every value in them is the curve's, and they suffice to test an implementation."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.docs.pages import program_named
from support.examples import examples
from support.golden.curves import CURVES
from support.numerics.oracle import Description, is_nearest_float32, mp
from support.schedulers.runs import peaks

from plateau_jax import Curve
from plateau_jax.arguments.curve_warning import suppress_warnings
from plateau_jax.export import template
from plateau_jax.export.vectors import vectors_as_json

PEAK = np.float32(3e-4)


def text_of(*curves: Curve, peak: float = PEAK) -> str:
    """Return the text of a file of test vectors."""
    inputs = [curve._vector_inputs() for curve in curves]
    return vectors_as_json(inputs, np.float32(peak))


def written(*curves: Curve, peak: float = PEAK) -> dict[str, Any]:
    return json.loads(text_of(*curves, peak=peak))


def fixed_value(segments: list[dict[str, Any]], step: int) -> int | None:
    """Return the integer at a step, as a port computes it, with the functions of exported files.

    It is None if the multiplier is the start level of the segment.

    Args:
        segments: Those of a curve in the file.
        step: Any integer.
    """
    step = max(step, 0)
    begun = [segment for segment in segments if segment["first_step"] <= step]
    segment = begun[-1]
    if segment["shape"] == "flat":
        return None
    elapsed = step - segment["first_step"] + segment["skipped"]
    if elapsed == 0:
        return None
    numbers: list[int] = []
    for name in ("start", "end", "rate", "power"):
        if name in segment:
            numbers.append(int(segment[name], 16))
    shape: Any = template.SHAPES[segment["shape"]]
    value = shape(elapsed, segment["length"], *numbers)
    return min(value << segment["shift"], template.ONE)


def bits_of(number: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return bits


@examples(20)
@given(st.lists(descriptions(scaled=True), min_size=1, max_size=3), peaks)
def test_vectors_are_the_values_of_the_curve(cases: list[Description], peak: float) -> None:
    content = written(*map(build, cases), peak=peak)
    assert content["format"] == 1
    assert content["peak"] == np.float32(peak)
    for description, entry in zip(cases, content["curves"], strict=True):
        curve = build(description)
        with suppress_warnings():
            assert Curve.from_dict(entry["curve"]) == curve
        for vector in entry["vectors"]:
            step = vector["step"]
            multiplier = curve(step)
            assert vector["multiplier"] == multiplier
            assert vector["bits"] == bits_of(multiplier)
            lr = curve.learning_rate(step, peak)
            assert vector["learning_rate"] == lr
            assert vector["learning_rate_bits"] == bits_of(lr)


@examples(30)
@given(descriptions(scaled=True))
def test_segments_suffice_for_every_integer(description: Description) -> None:
    (entry,) = written(build(description))["curves"]
    for vector in entry["vectors"]:
        value = fixed_value(entry["segments"], vector["step"])
        if value is None:
            assert vector["fixed"] is None
            levels = [segment["multiplier"] for segment in entry["segments"]]
            assert vector["multiplier"] in levels
        else:
            multiplier = np.float32(vector["multiplier"])
            assert value == int(vector["fixed"], 16)
            assert is_nearest_float32(multiplier, mp.mpf(value) / 2**62)


@examples(30)
@given(descriptions(scaled=True))
def test_vectors_cover_every_segment(description: Description) -> None:
    curve = build(description)
    (entry,) = written(curve)["curves"]
    steps = {vector["step"] for vector in entry["vectors"]}
    assert {-1, 0, 2**31 - 1} <= steps
    firsts = [segment["first_step"] for segment in entry["segments"]]
    assert firsts[0] == 0
    assert entry["segments"][-1]["shape"] == "flat"
    assert firsts == sorted(set(curve.table.begin.tolist()))
    for first, after in zip(firsts, [*firsts[1:], 2**31], strict=True):
        assert {first, after - 1, (first + after) // 2} <= steps
    assert len(entry["vectors"]) == len(steps)


@pytest.mark.parametrize("name", CURVES)
def test_each_segment_and_vector_has_a_line(name: str) -> None:
    curve = CURVES[name]
    text = text_of(curve)
    assert text.isascii()
    (entry,) = json.loads(text)["curves"]
    lines = {line.removesuffix(",") for line in text.splitlines()}
    for item in (*entry["segments"], *entry["vectors"]):
        assert json.dumps(item) in lines


def exact_product(a: int, b: int) -> int:
    return (a * b) >> 62


@pytest.mark.slow
def test_integers_show_what_float32_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the curves on the page, with a port that multiplies exactly."""
    monkeypatch.chdir(tmp_path)
    exec(program_named("Test vectors").code, {})
    curves: list[Curve] = []
    for path in tmp_path.iterdir():
        arguments = json.loads(path.read_text())
        curves.append(Curve.from_dict(arguments))
    content = written(*curves, peak=1)
    monkeypatch.setattr(template, "multiply", exact_product)
    wrong = 0
    for entry in content["curves"]:
        for vector in entry["vectors"]:
            value = fixed_value(entry["segments"], vector["step"])
            if value is not None:
                wrong += value != int(vector["fixed"], 16)
                assert template.fixed_to_float32(value) == vector["multiplier"]
    assert wrong > 200
