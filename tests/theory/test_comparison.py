"""`compare`: ratios to the first curve, names, text and HTML, and checks of its arguments."""

from dataclasses import FrozenInstanceError
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from support.curves.descriptions import build, descriptions
from support.errors import check_error, each_row
from support.examples import examples

from plateau_jax import PlateauCurve, compare
from plateau_jax.theory.comparison import Comparison

COSINE, LINEAR = PlateauCurve(1000), PlateauCurve(1000, decay_shape="linear")
LIMITS = "neither the loss itself", "at one fixed peak", "0.87 and 0.88", "0.95 and 0.93", "keep the peak"


@examples(20)
@given(st.lists(descriptions(range(7), scaled=True), min_size=1, max_size=4))
def test_ratios_are_relative_to_first_curve(described: Any) -> None:
    curves = [build(description) for description in described]
    assume(all(curve.total_steps <= 10**5 for curve in curves))
    assume(all(curve(np.arange(curve.total_steps)).any() for curve in curves))
    comparison = compare(*curves)
    alone = [compare(curve) for curve in curves]
    assert (comparison.bound, comparison.peak) == (alone[0].bound, alone[0].peak)
    assert comparison.bounds == tuple(prediction.bound / comparison.bound for prediction in alone)
    peaks = [
        prediction.peak * curve.total_steps**0.5 for prediction, curve in zip(alone, curves, strict=True)
    ]
    assert comparison.peaks == pytest.approx([peak / peaks[0] for peak in peaks], rel=1e-12)
    assert len(set(comparison.names)) == len(curves)
    named = compare(dict(zip(comparison.names, curves, strict=True)))
    assert named == comparison
    assert hash(named) == hash(comparison)


def test_names_match_the_legend() -> None:
    assert compare(COSINE, LINEAR).names == ("cosine decay to 0", "linear decay to 0")
    assert compare(COSINE, COSINE).names == (
        "1: 1000 steps, no warmup, cosine decay to 0, no plateau",
        "2: 1000 steps, no warmup, cosine decay to 0, no plateau",
    )


def test_comparison_prints_table_and_note() -> None:
    comparison = Comparison(("first", "a long name"), (1.0, 1.03219), (1.0, 0.0123456), 0.1, 0.05)
    first, second, third, empty, *note = str(comparison).splitlines()
    assert [first, second, third, empty] == [
        "             bound  best peak",
        "first        1.000       1.00",
        "a long name  1.032     0.0123",
        "",
    ]
    assert max(map(len, note)) <= 90
    assert all(limit in " ".join(note) for limit in LIMITS)


def test_notebook_shows_same_table() -> None:
    comparison = Comparison(("a < b", "c"), (1.0, 1.03219), (1.0, 0.5), 0.1, 0.05)
    root = ElementTree.fromstring(comparison._repr_html_())
    cells = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert cells == [["", "bound", "best peak"], ["a < b", "1.000", "1.00"], ["c", "1.032", "0.500"]]
    assert all(limit in "".join(root.itertext()) for limit in LIMITS)


ZERO, LONG_ZERO = (build({"stages": [(5,)] * count, "start": 0.0}) for count in (1, 1000))
ERRORS = [
    # `plot` has the same checks: `drawing/test_plots` has more rows.
    (lambda: compare(), ValueError, "there is no curve"),
    (lambda: compare("cosine"), TypeError, "curves[0] = 'cosine'", "be a Curve"),
    (lambda: compare(COSINE, {"a": LINEAR}), TypeError, "curves[1] = {", "be a Curve"),
    (lambda: compare({"a": COSINE, "b": 3}), TypeError, "curves['b'] = 3", "be a Curve"),
    (lambda: compare(COSINE, ZERO), ValueError, "StagedCurve(", "has no positive"),
    (lambda: compare(LONG_ZERO), ValueError, "... has no positive learning rate"),
    (lambda: setattr(compare(COSINE), "names", ()), FrozenInstanceError),
]


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    check_error(row, COSINE=COSINE)
