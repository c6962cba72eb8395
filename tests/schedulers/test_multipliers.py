"""Multipliers computed ahead: their values, and how many are kept."""

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st
from support.descriptions import build, descriptions
from support.examples import examples

from plateau_jax import PlateauCurve
from torch_bridge.schedulers.group_curves import Multipliers

any_step = st.one_of(st.integers(-(10**4), 10**4), st.integers(2**31 - 5000, 2**31 + 5000), st.integers())


@examples(50)
@given(
    st.lists(descriptions(range(5)), min_size=1, max_size=3),
    st.lists(st.tuples(any_step, st.integers(0, 3)), max_size=8),
)
def test_each_step_has_a_python_float_of_each_curve(cases, walk):
    curves = [build(description) for description in cases]
    ahead = Multipliers(curves)
    for start, further in walk:
        for step in range(start, start + further + 1):
            factors = ahead[step]
            assert factors == tuple(curve(step) for curve in curves)
            assert all(type(factor) is float for factor in factors)


def test_what_lies_behind_is_dropped():
    ahead = Multipliers([PlateauCurve(10**6)])
    sizes = {len(ahead) for step in range(20_000) if ahead[step]}
    assert len(sizes) == 1


def test_a_step_far_ahead_is_computed_alone():
    ahead = Multipliers([PlateauCurve(10**9)])
    for step in range(10**4, 10**5, 10**4):
        assert ahead[step]
        assert len(ahead) == 1
    assert ahead[step + 1]
    assert len(ahead) > 1000


def test_copies_carry_the_curves_alone():
    ahead = Multipliers([PlateauCurve(10**6)])
    expected = ahead[7]
    for copied in (copy.copy(ahead), copy.deepcopy(ahead), pickle.loads(pickle.dumps(ahead))):
        assert len(copied) == 0
        assert copied[7] == expected
