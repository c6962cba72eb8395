"""Peaks out of range, groups and parameters, and windows of values computed ahead."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.curves.descriptions import build, descriptions
from support.examples import examples
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with, peaks

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr
from torch_bridge.schedulers.group_curves import WindowOfValues
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
    st.lists(st.tuples(descriptions(range(5)), peaks), min_size=1, max_size=3),
    st.lists(st.tuples(any_step, st.integers(0, 3)), max_size=8),
)
def test_values_are_python_floats_of_the_curves(cases, walk):
    curves, bases = [build(description) for description, _ in cases], [base for _, base in cases]
    window = WindowOfValues(curves, bases)
    for start, further in walk:
        for step in range(start, start + further + 1):
            pairs = zip(bases, curves, strict=True)
            assert window[step] == tuple(learning_rate(base, curve, step) for base, curve in pairs)
            assert all(type(value) is float for value in window[step])


def test_values_keep_one_window():
    window = WindowOfValues([PlateauCurve(10**6)], [0.1])
    sizes = {len(window) for step in range(20_000) if window[step]}
    assert len(sizes) == 1


def test_distant_step_is_computed_alone():
    window = WindowOfValues([PlateauCurve(10**9)], [0.1])
    for step in range(10**4, 10**5, 10**4):
        assert window[step]
        assert len(window) == 1
    assert window[step + 1]
    assert len(window) > 1000


def test_copies_leave_out_the_values():
    window = WindowOfValues([PlateauCurve(10**6)], [0.1])
    expected = window[7]
    for copied in (copy.copy(window), copy.deepcopy(window), pickle.loads(pickle.dumps(window))):
        assert len(copied) == 0
        assert copied[7] == expected


def test_peak_written_into_base_lrs_is_used():
    optimizer = optimizer_with([0.1, 0.2])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 20)
    scheduler.base_lrs[1] = 0.7  # as programs for torch's schedulers do
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(peak, CURVE, 21) for peak in (0.1, 0.7)]
    scheduler.base_lrs = np.array([0.3, 0.4])
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(peak, CURVE, 22) for peak in (0.3, 0.4)]


@pytest.mark.parametrize("peak", [None, "0.2", 1e39, -1.0, float("nan")])
def test_wrong_peak_written_into_base_lrs_is_rejected(peak: Any):
    optimizer = optimizer_with([0.1, 0.2])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 2)
    scheduler.base_lrs[1] = peak
    before = lrs_of(optimizer)
    with pytest.raises((TypeError, ValueError), match=r"^base_lrs\[1\] = "):
        advance(optimizer, scheduler)
    assert lrs_of(optimizer) == before
