"""Learning rates in tensors: each stays the same tensor, and groups share one only under one schedule."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.schedulers.runs import advance, learning_rate, lrs_of, modest_peaks, optimizer_with
from support.training.trees import through_file

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr
from torch_bridge.schedulers.param_groups import peaks_of

pytestmark = [
    pytest.mark.usefixtures("short_windows"),
    pytest.mark.filterwarnings("ignore:the curve has total_steps:plateau_jax.CurveWarning"),
]

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
OTHER = PlateauCurve(200, plateaus=[(10, 20)], decay_shape="linear")

dtypes = st.sampled_from((torch.float32, torch.float64))


def _lr_tensors(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_tensor_may_have_one_element():
    tensor = torch.tensor([0.5])
    optimizer = optimizer_with([tensor])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 5)
    assert optimizer.param_groups[0]["lr"] is tensor
    assert scheduler.get_last_lr() == [tensor] == [torch.tensor([0.25])]
    assert scheduler.get_last_lr()[0] is not tensor


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("requires_grad", [False, True])
@given(st.floats(2.0**-10, 10))
def test_peak_is_the_number_in_the_tensor(dtype, requires_grad, lr):
    tensor = torch.tensor(lr, dtype=dtype)
    peak = float(np.float32(tensor.item()))
    tensor.requires_grad_(requires_grad)
    assert peaks_of(optimizer_with([tensor], torch.optim.AdamW)) == [peak]
    # A clone, since torch's schedulers can't fill a leaf of autograd.
    optimizer = optimizer_with([tensor.clone()], torch.optim.AdamW)
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=9)  # the end of the warmup
    assert scheduler.base_lrs == [peak]
    assert optimizer.param_groups[0]["lr"].item() == (peak if dtype == torch.float64 else tensor.item())
    state = scheduler.state_dict()
    assert state["base_lrs"] == [peak]
    assert state["rates"] == [optimizer.param_groups[0]["lr"].item()]


@given(
    modest_peaks,
    dtypes,
    st.lists(st.sampled_from((CURVE, OTHER)), min_size=1, max_size=4),
    st.integers(0, 20),
)
def test_groups_share_a_tensor_only_under_one_curve(peak, dtype, curves, steps):
    # torch gives the same tensor to all groups without an explicit learning rate.
    shared = torch.tensor(peak, dtype=dtype)
    optimizer = optimizer_with([None] * len(curves), torch.optim.AdamW, lr=shared)
    assert all(rate is shared for rate in _lr_tensors(optimizer))
    scheduler = lambda_lr(optimizer, curves)
    held = _lr_tensors(optimizer)
    for curve, rate in zip(curves, held, strict=True):
        assert (rate is shared) == (curve == curves[0])
    advance(optimizer, scheduler, steps)
    assert all(rate is before for rate, before in zip(_lr_tensors(optimizer), held, strict=True))
    assert lrs_of(optimizer) == [learning_rate(peak, curve, steps) for curve in curves]


@given(st.integers(0, 30))
def test_load_separates_shared_tensors_of_new_curves(steps):
    saved = optimizer_with([None, None], torch.optim.AdamW, lr=torch.tensor(0.5))
    scheduler = lambda_lr(saved, CURVE)
    advance(saved, scheduler, steps)
    states = through_file([saved.state_dict(), scheduler.state_dict()])

    optimizer = optimizer_with([None, None], torch.optim.AdamW, lr=torch.tensor(0.5))
    scheduler = lambda_lr(optimizer, [CURVE, OTHER])
    optimizer.load_state_dict(states[0])
    scheduler.load_state_dict(states[1], strict=False)
    for step in range(steps, steps + 3):
        assert lrs_of(optimizer) == [learning_rate(0.5, curve, step) for curve in (CURVE, OTHER)]
        advance(optimizer, scheduler)


@pytest.mark.gpu("torch")
@given(modest_peaks, st.integers(0, 30))
def test_lr_on_the_device_stays_there(peak, steps):
    tensor = torch.tensor(peak, device="cuda")
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=tensor, capturable=True)
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, steps)
    assert optimizer.param_groups[0]["lr"] is tensor
    assert tensor.is_cuda
    assert tensor.item() == learning_rate(peak, CURVE, steps)
