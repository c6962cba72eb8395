"""Peaks out of range, groups and multipliers, and windows computed ahead."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import optimizer_with

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr
from torch_bridge.schedulers.group_curves import Multipliers
from torch_bridge.schedulers.param_groups import all_groups, all_parameters

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


bad_lrs = st.one_of(
    st.floats(max_value=-1e-300),
    st.floats(0, 2.0**-126, exclude_min=True, exclude_max=True),
    st.floats(min_value=3.5e38),
    st.sampled_from((float("nan"), float("-inf"), 10**400)),
)


@given(bad_lrs, st.sampled_from(("lr", "initial_lr")), st.booleans())
def test_lr_out_of_range_is_rejected(lr, key, in_a_tensor):
    optimizer = optimizer_with([0.1, 0.1])
    lr = torch.tensor(float(lr), dtype=torch.float64) if in_a_tensor and lr != 10**400 else lr
    optimizer.param_groups[1][key] = lr
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=r"param_groups\[1\] = "):
        lambda_lr(optimizer, CURVE)
    for group, old in zip(optimizer.param_groups, before, strict=True):
        assert group.keys() == old.keys()
        assert all(group[name] is old[name] for name in old)


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3))
def test_groups_and_parameters_of_several_optimizers(sizes):
    """`sizes` lists, for each optimizer, the number of parameters in each group."""
    optimizers, groups, parameters = [], [], []
    for counts in sizes:
        made = [[torch.nn.Parameter(torch.ones(1)) for _ in range(count)] for count in counts]
        optimizers.append(torch.optim.SGD([{"params": group} for group in made], lr=0.1))
        groups += optimizers[-1].param_groups
        parameters += [parameter for group in made for parameter in group]
    assert list(map(id, all_groups(iter(optimizers)))) == list(map(id, groups))
    assert list(map(id, all_parameters(iter(optimizers)))) == list(map(id, parameters))


any_step = st.one_of(st.integers(-(10**4), 10**4), st.integers(2**31 - 5000, 2**31 + 5000), st.integers())


@examples(50)
@given(
    st.lists(descriptions(range(5)), min_size=1, max_size=3),
    st.lists(st.tuples(any_step, st.integers(0, 3)), max_size=8),
)
def test_multipliers_are_python_floats_of_the_curves(cases, walk):
    curves = [build(description) for description in cases]
    multipliers = Multipliers(curves)
    for start, further in walk:
        for step in range(start, start + further + 1):
            factors = multipliers[step]
            assert factors == tuple(curve(step) for curve in curves)
            assert all(type(factor) is float for factor in factors)


def test_multipliers_keep_one_window():
    multipliers = Multipliers([PlateauCurve(10**6)])
    sizes = {len(multipliers) for step in range(20_000) if multipliers[step]}
    assert len(sizes) == 1


def test_distant_step_is_computed_alone():
    multipliers = Multipliers([PlateauCurve(10**9)])
    for step in range(10**4, 10**5, 10**4):
        assert multipliers[step]
        assert len(multipliers) == 1
    assert multipliers[step + 1]
    assert len(multipliers) > 1000


def test_copies_leave_out_the_window():
    multipliers = Multipliers([PlateauCurve(10**6)])
    expected = multipliers[7]
    for copied in (
        copy.copy(multipliers),
        copy.deepcopy(multipliers),
        pickle.loads(pickle.dumps(multipliers)),
    ):
        assert len(copied) == 0
        assert copied[7] == expected
