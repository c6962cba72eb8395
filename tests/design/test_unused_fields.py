"""Fields that have no effect on a curve: the page greys them."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.design.unused_fields import unused_fields

OTHERS: dict[str | int, Any] = {
    1: st.floats(0.1, 1),  # the level of a stage; an exponential one cannot begin at 0
    2: st.sampled_from(["linear", "1-sqrt", "cosine"]),  # and its shape
    "warmup_shape": st.sampled_from(["linear", "cosine"]),
    "decay_shape": st.sampled_from(["linear", "cosine", "1-sqrt", "(1-x)^3"]),
    "init_lr_ratio": st.floats(0, 1),
    "min_lr_ratio": st.floats(0, 1),
}


@given(descriptions(counts=range(4), depth=2, scaled=True), st.data())
def test_unused_fields_do_not_change_the_curve(description, data):
    curve = build(description)
    steps = np.unique(
        [*(row.begin for row in curve.rows), *np.linspace(0, curve.total_steps + 1, 200).astype(int)]
    )
    for path in unused_fields(curve):
        entry: Any = {"curve": copy.deepcopy(curve.to_dict())}
        *outer, last = path
        holder = entry
        for key in outer:
            holder = holder[key]
        holder[last] = data.draw(OTHERS[last]) if last in OTHERS else holder[last] + 1
        assert np.array_equal(Curve.from_dict(entry["curve"])(steps), curve(steps)), path


STABLE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(0, 80)])
CASES = [
    (PlateauCurve(100), ["warmup_shape", "init_lr_ratio"]),
    (STABLE, []),
    (STABLE.cooldown(7_000, 1_000), ["decay_shape", "min_lr_ratio"]),
    (PlateauCurve(100, warmup_steps=10).cooldown(50, 10), []),
    (STABLE.part(8_200), ["warmup_shape", "init_lr_ratio"]),
    (StagedCurve([(10, 1.0), (20,), (0, 0.5), (30, 0.0)]), [2, 2]),
    (StagedCurve([(10, 1.0), (20,), (20, 0.0)]).cooldown(30, 10), [2, 1, 2]),
    (StagedCurve([(1, 0.5), (1,)] * 200), []),  # too long to be examined
]


@pytest.mark.parametrize(("curve", "expected"), CASES, ids=[repr(curve)[:80] for curve, _ in CASES])
def test_fields_without_effect_are_named(curve, expected):
    assert [path[-1] for path in unused_fields(curve)] == expected
