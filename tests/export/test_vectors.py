"""Test vectors: every value in them is the curve's, and they suffice to test an implementation.

`docs/export.md` has the C file's evaluator, and integers that a port rounds wrongly.
"""

import json
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curve_warnings import ignore_curve_warnings
from support.curves.descriptions import build, descriptions
from support.docs.pages import ROOT, section_named
from support.examples import examples
from support.golden.curves import CURVES
from support.schedulers.runs import peaks

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.tools.export.rows import hexadecimal
from plateau_jax.tools.export.vectors import vectors_as_json

PEAK = 3e-4
C_PROGRAM = ROOT / "examples" / "curve_in_c.py"


def text_of(*curves, peak=PEAK):
    """Return the text of a file of test vectors."""
    return vectors_as_json(curves, float(np.float32(peak)))


def written(*curves, peak=PEAK):
    return json.loads(text_of(*curves, peak=peak))


def bits_of(number):
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return bits


@given(st.integers(-(2**62), 2**62))
def test_integers_are_read_back_with_their_sign(value):
    assert int(hexadecimal(value), 0) == value


@examples(20)
@given(st.lists(descriptions(scaled=True), min_size=1, max_size=3), peaks)
def test_vectors_are_the_values_of_the_curve(cases, peak):
    content = written(*map(build, cases), peak=peak)
    assert content["format"] == 1
    assert content["peak"] == np.float32(peak)
    for description, entry in zip(cases, content["curves"], strict=True):
        curve = build(description)
        with ignore_curve_warnings():
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
def test_table_suffices_for_every_integer(description):
    """A port by the page, in rational numbers."""
    (entry,) = written(build(description))["curves"]
    for vector in entry["vectors"]:
        step = max(vector["step"], 0)
        begun = [row for row in entry["rows"] if row[0] <= step]
        begin, shift, first = begun[-1]
        piece, rest = divmod(step - begin, 1 << shift)
        exponent, *coefficients = entry["pieces"][first + piece]
        t = rest * 2 ** (31 - shift) - 2**30
        value = 0
        for coefficient in reversed(coefficients):
            value = int(coefficient, 16) + value * t // 2**31
        assert value == int(vector["value"], 16)
        multiplier = float(np.int64(value).astype(np.float32)) * 2.0**-exponent
        assert vector["multiplier"] == (multiplier if multiplier >= 2.0**-126 else 0)


@examples(30)
@given(descriptions(scaled=True))
def test_vectors_cover_every_piece(description):
    curve = build(description)
    (entry,) = written(curve)["curves"]
    steps = [vector["step"] for vector in entry["vectors"]]
    assert steps == sorted(set(steps))
    assert {-1, 0, 2**31 - 1} <= set(steps)
    firsts = [row[0] for row in entry["rows"]]
    ends = [row[2] for row in entry["rows"][1:]]
    for row, after, end in zip(
        entry["rows"], [*firsts[1:], 2**31], [*ends, len(entry["pieces"])], strict=True
    ):
        for piece in range(end - row[2]):
            begin = row[0] + (piece << row[1])
            last = min(begin + (1 << row[1]), after) - 1
            assert {begin, (begin + last) // 2, last} <= set(steps)


def test_peak_that_is_not_rounded_shows():
    """The product of 0.3 and a peak of 3e-4 as a double rounds to another float32."""
    (entry,) = written(StagedCurve([(5, 0.3)], start=0.3))["curves"]
    (bits,) = {vector["learning_rate_bits"] for vector in entry["vectors"]}
    assert bits == 0x38BCBE63
    assert bits_of(3e-4 * entry["vectors"][0]["multiplier"]) == 0x38BCBE62


# Ports.

PORTED = ["wsd", "plateau_one_step", "nested", "cooldown_power_from_start"]
"""The curves that the ports compute."""


def path_of_compiler(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name}")
    return path


# A port to C.


def c_file(vectors):
    command = [sys.executable, str(C_PROGRAM), str(vectors)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


MAIN = """
#include <stdio.h>
#include <string.h>
int main(void) {
    int step;
    double peak;
    for (unsigned piece = 0; piece < sizeof pieces / sizeof *pieces; piece++)
        for (unsigned k = 0; k < sizeof pieces->c / sizeof *pieces->c; k++)
            printf("%lld ", (long long)pieces[piece].c[k]);
    printf("\\n");
    while (scanf("%d %lf", &step, &peak) == 2) {
        float numbers[2] = {multiplier(step), learning_rate(step, peak)};
        uint32_t bits[2];
        memcpy(bits, numbers, sizeof bits);
        printf("%u %u\\n", bits[0], bits[1]);
    }
}
"""


def hard_integers():
    """Return values of a polynomial, their exponents and the bits of the float32."""
    table = section_named("Write a port").rows
    return [
        (int(value.code[0], 16), int(exponent.text), int(bits.code[0], 16))
        for value, exponent, bits in table
    ]


def test_page_has_the_bits_of_hard_integers():
    functions = {}
    exec(PlateauCurve(100).to_source(), functions)
    integers = hard_integers()
    assert len(integers) == 7
    for value, exponent, bits in integers:
        assert bits_of(functions["round_to_float32"](value, exponent)) == bits


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cc -std=c11", "c++ -x c++ -std=c++17"])
def test_c_file_rounds_each_integer_once(command, tmp_path):
    """In C++, `ldexp` of a float returns a float."""
    compiler, *options = command.split()
    integers = hard_integers()
    rows = [[step, 0, step] for step in range(len(integers))]
    pieces = [[exponent, hex(value)] for value, exponent, _ in integers]
    vectors = tmp_path / "vectors.json"
    vectors.write_text(json.dumps({"curves": [{"curve": {}, "rows": rows, "pieces": pieces}]}))
    source = tmp_path / "schedule.c"
    source.write_text(c_file(vectors) + MAIN)
    program = tmp_path / "schedule"
    subprocess.run([path_of_compiler(compiler), *options, source, "-o", program, "-lm"], check=True)
    steps = "".join(f"{step} 1.0\n" for step, *_ in rows)
    run = subprocess.run([program], input=steps, capture_output=True, text=True, check=True)
    _, *lines = run.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [bits for _, _, bits in integers]


@pytest.mark.slow
@pytest.mark.parametrize("name", PORTED)
@pytest.mark.parametrize("options", [["-O2"], ["-O3", "-ffast-math"]], ids=" ".join)
def test_c_file_has_the_same_bits(name, options, tmp_path):
    compiler = path_of_compiler("cc")
    vectors = tmp_path / "vectors.json"
    vectors.write_text(text_of(CURVES[name]))
    source = tmp_path / "schedule.c"
    source.write_text(c_file(vectors) + MAIN)
    program = tmp_path / "schedule"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *strict, *options, source, "-o", program, "-lm"], check=True)
    (entry,) = json.loads(vectors.read_text())["curves"]
    steps = "".join(f"{vector['step']} {PEAK!r}\n" for vector in entry["vectors"])
    run = subprocess.run([program], input=steps, capture_output=True, text=True, check=True)
    coefficients, *lines = run.stdout.splitlines()
    pieces = [[int(number, 16) for number in piece] for _, *piece in entry["pieces"]]
    terms = max(map(len, pieces))
    expected = [number for piece in pieces for number in (*piece, *[0] * (terms - len(piece)))]
    assert list(map(int, coefficients.split())) == expected
    for line, vector in zip(lines, entry["vectors"], strict=True):
        assert line == f"{vector['bits']} {vector['learning_rate_bits']}"


# A port to Rust, whose program is on the page.


@pytest.mark.slow
@pytest.mark.parametrize("name", PORTED)
@pytest.mark.parametrize("options", [["-O"], ["-C", "overflow-checks=on"]], ids=" ".join)
def test_rust_program_has_the_same_bits(name, options, tmp_path):
    compiler = path_of_compiler("rustc")
    section = section_named("Write a port")
    (rust,) = section.code_in("rust")
    (table,) = [block.code for block in section.blocks if block.file == "table_in_rust.py"]
    (tmp_path / "main.rs").write_text(rust)
    (tmp_path / "table_in_rust.py").write_text(table)
    vectors = text_of(CURVES[name])
    (tmp_path / "vectors.json").write_text(vectors)
    subprocess.run([sys.executable, "table_in_rust.py"], cwd=tmp_path, check=True)
    subprocess.run([compiler, *options, "main.rs"], cwd=tmp_path, check=True)
    (entry,) = json.loads(vectors)["curves"]
    steps = [str(vector["step"]) for vector in entry["vectors"]]
    command = [tmp_path / "main", *steps]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    bits = [bits_of(float(line)) for line in run.stdout.splitlines()]
    assert bits == [vector["bits"] for vector in entry["vectors"]]


def test_page_shows_what_the_rust_program_prints():
    (shown,) = section_named("Write a port").code_in("text")
    curve = StagedCurve.wsd(10_000, warmup_steps=500, decay_steps="20%")
    assert [np.float32(line) for line in shown.split()] == curve([250, 5_000, 9_000]).tolist()


def test_c_file_in_the_examples_is_printed_by_the_program(tmp_path):
    curve = StagedCurve.wsd(10_000, warmup_steps=500, decay_steps="20%")
    vectors = tmp_path / "vectors.json"
    vectors.write_text(text_of(curve))
    assert c_file(vectors) == (ROOT / "examples" / "schedule.c").read_text()


def test_page_quotes_the_function_of_the_c_file():
    text = (ROOT / "examples" / "schedule.c").read_text(encoding="utf-8")
    begin = text.index("float multiplier")
    function = text[begin : text.index("\n}", begin) + 2]
    assert function + "\n" in section_named("Write a port").code_in("c")
