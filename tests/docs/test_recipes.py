"""Recipes of the pages for any lengths: several lengths from one run, and a decay that is stretched."""

import re
from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.docs.pages import program_named
from support.examples import corners, examples

pytestmark = pytest.mark.slow


def names_after(settings):
    """Return the names that both recipes for several lengths set."""
    names = dict(settings)
    _, *recipes = program_named("Several lengths from one run").blocks
    exec("from plateau_jax import StagedCurve\n" + "\n".join(recipes), names)
    return names


@st.composite
def ladders(draw):
    decay = draw(st.sampled_from((0.1, 0.2, 0.5)))
    warmup = draw(st.integers(0, 20))
    growth = draw(st.lists(st.integers(10, 60), min_size=1, max_size=4))
    lengths = [2 * warmup + sum(growth[: n + 1]) for n in range(len(growth))]
    while not all(round((1 - decay) * b) > round((1 - decay) * a) for a, b in pairwise(lengths)):
        lengths = [10 * length for length in lengths]
    peaks = draw(st.lists(st.just(1.0) | st.floats(0.1, 1), min_size=len(growth), max_size=len(growth)))
    return {"lengths": lengths, "peaks": peaks, "warmup": warmup, "decay": decay}


@examples(30)
@given(ladders())
def test_each_length_has_its_peak_and_decay(ladder):
    names, peaks, lengths = names_after(ladder), ladder["peaks"], ladder["lengths"]
    starts = names["starts"]

    def rising(step):
        return peaks[0] * min(1.0, step / ladder["warmup"]) if ladder["warmup"] else peaks[0]

    for step in range(lengths[-1]):
        period = bisect_right(starts, step)
        if period < len(peaks):
            level = rising(step) if step < ladder["warmup"] else peaks[period]
            assert names["trunk"](step) == pytest.approx(level, rel=1e-7)
        period = bisect_right(lengths, step)
        begin = lengths[period - 1] if period else 0
        fall = round(ladder["decay"] * (lengths[period] - begin))
        level = rising(step) if step < ladder["warmup"] else peaks[period]
        level *= min(1.0, (lengths[period] - step) / fall)
        assert names["wsds"](step) == pytest.approx(level, rel=1e-6)
    for branch, start, length, peak in zip(names["branches"], starts, lengths, peaks, strict=True):
        assert branch.same_until(names["trunk"], start)
        assert branch([start, length]).tolist() == [np.float32(peak), 0]
        assert branch.total_steps == length
    assert names["save"][1::2] == lengths
    assert [names["wsds"](step) for step in names["save"][::2]] == [np.float32(peak) for peak in peaks]


@examples(50)
@given(st.data())
def test_stretched_decay_begins_at_its_level_and_ends_in_time(data):
    warmup = data.draw(st.just(0) | st.integers(1, 300))
    planned = warmup + data.draw(corners(2, 900))
    at = data.draw(corners(warmup + 1, planned - 1))
    total = planned + data.draw(corners(1, 2000))
    build, search, *_ = program_named("Stretch a decay that is running").blocks
    for name, value in {"warmup, planned": (warmup, planned), "at, total": (at, total)}.items():
        build, count = re.subn(f"^{name} = [^#\n]+", f"{name} = {value}  ", build, flags=re.MULTILINE)
        assert count == 1
    names = {}
    exec(build + search, names)
    assert names["stretched"].total_steps == total
    assert names["stretched"].same_until(names["cosine"], at)
    # The fraction of its decay that each curve has made.
    made = Fraction(at - warmup, planned - warmup)
    assert Fraction(names["first"] - 1 - warmup, names["decay"]) < made
    assert made <= Fraction(names["first"] - warmup, names["decay"])
    longer, level = names["longer"], names["cosine"](at)
    found = np.flatnonzero(names["above"])[-1] + 1
    assert longer(found - 1) > level >= longer(found) >= longer(names["first"])
