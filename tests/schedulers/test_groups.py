"""Parameter groups: their tensors, new groups, and the window of values ahead."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.runs.options import Key, option_of, set_option
from support.schedulers.runs import (
    advance,
    learning_rate,
    lrs_of,
    modest_peaks,
    optimizer_with,
)
from support.training.steps import through_file
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR

from plateau_jax import CurveWarning, PlateauCurve
from plateau_jax.runs.values_ahead import ValuesAhead
from torch_bridge import follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
DIFFERENT = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")


def test_values_ahead_stay_few() -> None:
    """As many steps as at first, or a distant step alone; copies have none."""
    values = ValuesAhead([PlateauCurve(10**9)], [0.1])
    assert values.at(0)
    steps_ahead = len(values.rows)
    for step in range(20_000):
        assert values.at(step)
        assert len(values.rows) == steps_ahead
    for distant_step in range(10**5, 10**6, 10**5):
        assert values.at(distant_step)
        assert len(values.rows) == 1
    assert values.at(900_001)
    assert len(values.rows) > 1000
    copies = [copy.copy(values), copy.deepcopy(values), pickle.loads(pickle.dumps(values))]
    for copied in copies:
        assert len(copied.rows) == 0
        assert copied.at(900_000) == values.at(900_000)


# Groups that change again.


def group_of(size: int, **options: Any) -> dict[str, Any]:
    """Return a group of one parameter."""
    return {"params": [torch.nn.Parameter(torch.ones(size))], **options}


def remove_first(optimizer: Optimizer) -> None:
    del optimizer.param_groups[0]


def reverse(optimizer: Optimizer) -> None:
    optimizer.param_groups.reverse()


def add_one(optimizer: Optimizer) -> None:
    optimizer.add_param_group(group_of(2, lr=0.125))


CHANGES = pytest.mark.parametrize("change", [remove_first, reverse, add_one])


def bases_by_group(optimizer: Optimizer, bases: list[float]) -> dict[int, float]:
    groups = map(id, optimizer.param_groups)
    return dict(zip(groups, bases, strict=True))


@CHANGES
@pytest.mark.parametrize("peak", [0.25, 0.3])
def test_groups_change_after_bases_were_appended(change: Any, peak: float) -> None:
    """Whether or not float32 holds the appended base."""
    optimizer = optimizer_with([0.5, 0.125])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 15)
    optimizer.add_param_group(group_of(2, lr=1e-3))
    scheduler.base_lrs.append(peak)
    scheduler.lr_lambdas.append(scheduler.lr_lambdas[-1])
    advance(optimizer, scheduler, 5)
    bases = bases_by_group(optimizer, scheduler.base_lrs)
    change(optimizer)
    advance(optimizer, scheduler)
    expected_bases = [bases.get(id(group), 0.125) for group in optimizer.param_groups]
    expected_lrs = [learning_rate(base, CURVE, 21) for base in expected_bases]
    assert scheduler.base_lrs == expected_bases
    assert lrs_of(optimizer) == expected_lrs


@CHANGES
def test_groups_change_after_a_move_to_another_optimizer(change: Any) -> None:
    """Of the same parameters, in the usual order of steps."""
    former = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(former, CURVE)
    follower = follow(former, "weight_decay", CURVE)
    advance(former, scheduler, 15)
    groups: list[Any] = []
    for group in former.param_groups:
        groups.append({"params": group["params"], "lr": group["lr"]})
    optimizer = AdamW(groups)
    scheduler.optimizer = optimizer
    follower.optimizer = optimizer
    advance(optimizer, scheduler)
    bases = bases_by_group(optimizer, [0.5, 0.25])
    change(optimizer)
    advance(optimizer, scheduler)
    follower.step()
    expected_bases = [bases.get(id(group), 0.125) for group in optimizer.param_groups]
    expected_lrs = [learning_rate(base, CURVE, 17) for base in expected_bases]
    assert lrs_of(optimizer) == expected_lrs


# Tensors, and new groups.


@pytest.mark.parametrize("key", ["lr", "weight_decay", ("betas", np.int64(0))])
@examples(40)
@given(
    base=modest_peaks,
    dtype=st.sampled_from((torch.float32, torch.float64)),
    curves=st.lists(st.sampled_from((CURVE, DIFFERENT)), min_size=1, max_size=4),
)
def test_groups_share_a_tensor_only_under_one_curve(
    key: Key, base: float, dtype: torch.dtype, curves: list[PlateauCurve]
) -> None:
    """Torch gives the same tensor to all groups without an explicit value."""
    shared = torch.tensor(base, dtype=dtype)
    optimizer = optimizer_with([0.1] * len(curves), AdamW)
    for group in (optimizer.defaults, *optimizer.param_groups):
        set_option(group, key, shared)
    if key == "lr":
        part: Any = lambda_lr(optimizer, curves)
    else:
        part = follow(optimizer, key, curves)
    held = [option_of(group, key) for group in optimizer.param_groups]
    for tensor, curve in zip(held, curves, strict=True):
        assert (tensor is shared) == (curve == curves[0])
    for _ in range(3):
        optimizer.step()
        part.step()
    now = [option_of(group, key) for group in optimizer.param_groups]
    for tensor, earlier_tensor, curve in zip(now, held, curves, strict=True):
        assert tensor is earlier_tensor
        assert float(tensor) == learning_rate(base, curve, 3)
    default = float(option_of(optimizer.defaults, key))
    assert default == np.float32(base), "a new group begins with it"


def test_new_peaks_separate_shared_tensors() -> None:
    optimizer = optimizer_with([None, None], AdamW, lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, DIFFERENT)
    scheduler.set_peak([0.5, 0.25])
    assert lrs_of(optimizer) == [0.5, 0.25]


def test_load_compares_the_curves_of_all_groups() -> None:
    saved = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(saved, CURVE)
    advance(saved, scheduler, 7)
    state = scheduler.state_dict()
    optimizer = optimizer_with([0.5, 0.25])
    again = lambda_lr(optimizer, [CURVE, DIFFERENT])
    with pytest.raises(ValueError, match=r"of param_groups\[1\] differ from step 0 on"):
        again.load_state_dict(state)


def test_load_separates_shared_tensors_of_new_curves() -> None:
    saved = optimizer_with([None, None], AdamW, lr=torch.tensor(0.5))
    resumed = optimizer_with([None, None], AdamW, lr=torch.tensor(0.5))
    scheduler = lambda_lr(saved, CURVE)
    advance(saved, scheduler, 7)
    again = lambda_lr(resumed, [CURVE, DIFFERENT])
    resumed.load_state_dict(through_file(saved.state_dict()))
    with pytest.warns(CurveWarning, match=r"of param_groups\[1\] differ from step 0 on"):
        again.load_state_dict(scheduler.state_dict(), strict=False)
    for step in range(7, 10):
        expected = [learning_rate(0.5, curve, step) for curve in (CURVE, DIFFERENT)]
        assert lrs_of(resumed) == expected
        advance(resumed, again)


def test_new_group_begins_at_the_peak_after_another_scheduler() -> None:
    """That one has written into the tensor which is the optimizer's default too."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
    ConstantLR(optimizer, 0.5)
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.add_param_group(group_of(1))
    advance(optimizer, scheduler)
    assert scheduler.base_lrs == [0.5, 0.5]


def test_list_option_stays_a_list() -> None:
    optimizer = optimizer_with([0.1], AdamW)
    (group,) = optimizer.param_groups
    group["betas"] = [0.5, 0.9]
    follower = follow(optimizer, ("betas", 1), CURVE)
    follower.step()
    assert group["betas"] == [0.5, learning_rate(0.9, CURVE, 1)]


@pytest.mark.gpu("torch")
def test_lr_on_the_device_stays_there() -> None:
    tensor = torch.tensor(0.7, device="cuda")
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = AdamW([parameter], lr=tensor, capturable=True)
    scheduler = lambda_lr(optimizer, CURVE)
    for step in range(30):
        assert optimizer.param_groups[0]["lr"] is tensor
        assert tensor.item() == learning_rate(0.7, CURVE, step)
        advance(optimizer, scheduler)
