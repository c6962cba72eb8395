"""Parameter groups: their peaks and tensors, new groups, and the window of values ahead."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.runs.options import Key, option_of, set_option
from support.runs.torch_run import SchedulerRun
from support.schedulers.runs import (
    advance,
    learning_rate,
    lrs_of,
    modest_peaks,
    optimizer_with,
    peaks,
)
from support.training.steps import through_file
from support.trees import equal_trees
from torch.optim import SGD, Adagrad, AdamW
from torch.optim.lr_scheduler import ConstantLR

from plateau_jax import CurveWarning, PlateauCurve
from plateau_jax.runs.values_ahead import ValuesAhead
from torch_bridge import follow, lambda_lr
from torch_bridge.groups.curves_and_peaks import peaks_of

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


def remove_first(optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[0]


def reverse(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.reverse()


def add_one(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.125})


CHANGES = pytest.mark.parametrize("change", [remove_first, reverse, add_one])


@CHANGES
@pytest.mark.parametrize("peak", [0.25, 0.3])
def test_groups_change_after_bases_were_appended(change: Any, peak: float) -> None:
    """Whether or not float32 holds the appended base."""
    optimizer = optimizer_with([0.5, 0.125])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 15)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-3})
    scheduler.base_lrs.append(peak)
    scheduler.lr_lambdas.append(scheduler.lr_lambdas[-1])
    advance(optimizer, scheduler, 5)
    bases = dict(zip(map(id, optimizer.param_groups), scheduler.base_lrs, strict=True))
    change(optimizer)
    advance(optimizer, scheduler)
    expected = [bases.get(id(group), 0.125) for group in optimizer.param_groups]
    assert scheduler.base_lrs == expected
    assert lrs_of(optimizer) == [learning_rate(base, CURVE, 21) for base in expected]


@CHANGES
def test_groups_change_after_a_move_to_another_optimizer(change: Any) -> None:
    """Of the same parameters, in the usual order of steps."""
    former = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(former, CURVE)
    follower = follow(former, "weight_decay", CURVE)
    advance(former, scheduler, 15)
    groups = [{"params": group["params"], "lr": group["lr"]} for group in former.param_groups]
    optimizer = AdamW(groups)
    scheduler.optimizer = optimizer
    follower.optimizer = optimizer
    advance(optimizer, scheduler)
    bases = dict(zip(map(id, optimizer.param_groups), (0.5, 0.25), strict=True))
    change(optimizer)
    advance(optimizer, scheduler)
    follower.step()
    expected = [bases.get(id(group), 0.125) for group in optimizer.param_groups]
    assert lrs_of(optimizer) == [learning_rate(base, CURVE, 17) for base in expected]


# Peaks.


@given(peaks, peaks)
def test_peak_is_initial_lr_in_float32(lr: float, peak: float) -> None:
    optimizer = optimizer_with([lr, lr])
    optimizer.param_groups[1]["initial_lr"] = peak
    first = lambda_lr(optimizer, CURVE)
    expected = [float(np.float32(lr)), float(np.float32(peak))]
    assert first.base_lrs == expected
    assert [group["initial_lr"] for group in optimizer.param_groups] == expected
    advance(optimizer, first, 5)
    end_of_warmup = lambda_lr(optimizer, CURVE, last_epoch=9)
    assert end_of_warmup.base_lrs == expected
    assert lrs_of(optimizer) == expected


@pytest.mark.parametrize("build", [AdamW, Adagrad, SGD])
def test_peaks_are_known_in_mid_run(build: Any) -> None:
    """If the optimizer is new, or has an `initial_lr`, or no state shows that it was stepped."""
    assert lambda_lr(optimizer_with([0.5], build), CURVE, 6).base_lrs == [0.5]
    stepped = optimizer_with([0.5], build)
    stepped.step()
    last_epoch = -1
    if build is SGD:
        last_epoch = 6
    assert lambda_lr(stepped, CURVE, last_epoch).base_lrs == [0.5]
    stepped.param_groups[0]["lr"] = 0.01
    assert lambda_lr(stepped, CURVE, 6).base_lrs == [0.5]


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_peak_is_the_number_in_the_tensor(shape: tuple[int, ...], requires_grad: bool) -> None:
    lr = torch.full(shape, 0.7, dtype=torch.float16, requires_grad=requires_grad)
    assert peaks_of(optimizer_with([lr], AdamW)) == [lr.item()]
    # A clone, since torch's schedulers can't fill a leaf of autograd.
    optimizer = optimizer_with([lr.clone()], AdamW)
    scheduler = lambda_lr(optimizer, CURVE, last_epoch=9)  # the end of the warmup
    (group,) = optimizer.param_groups
    state = scheduler.state_dict()
    assert group["lr"].item() == lr.item()
    assert scheduler.base_lrs == [lr.item()]
    assert state["base_lrs"] == [lr.item()]
    assert state["_last_lr"] == [lr.item()]
    assert scheduler.get_last_lr() == [group["lr"]]
    assert scheduler.get_last_lr()[0] is not group["lr"]


def test_peak_written_into_base_lrs_is_used() -> None:
    optimizer = optimizer_with([0.1, 0.2])
    scheduler: Any = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 20)
    scheduler.base_lrs[1] = 0.7  # as programs for torch's schedulers do
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(peak, CURVE, 21) for peak in (0.1, 0.7)]
    scheduler.base_lrs = np.array([0.3, 0.4])
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(peak, CURVE, 22) for peak in (0.3, 0.4)]


@pytest.mark.parametrize(("peak", "error"), [(None, TypeError), (-1.0, ValueError)])
def test_wrong_peak_written_into_base_lrs(peak: Any, error: type[Exception]) -> None:
    optimizer = optimizer_with([0.1, 0.2])
    scheduler: Any = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 20)
    before = lrs_of(optimizer)
    scheduler.base_lrs = [0.3, peak]
    with pytest.raises(error, match=r"^base_lrs\[1\] = "):
        advance(optimizer, scheduler)
    assert lrs_of(optimizer) == before


def test_list_with_a_wrong_number_of_items_is_named() -> None:
    optimizer = optimizer_with([0.1, 0.2])
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.base_lrs.append(0.3)
    with pytest.raises(ValueError, match=r"^base_lrs has 3 items for 2 parameter groups"):
        advance(optimizer, scheduler)
    del scheduler.base_lrs[2]
    scheduler.lr_lambdas.append(CURVE)
    with pytest.raises(ValueError, match=r"^lr_lambdas has 3 items for 2 parameter groups"):
        advance(optimizer, scheduler)


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
    assert [tensor is shared for tensor in held] == [curve == curves[0] for curve in curves]
    for _ in range(3):
        optimizer.step()
        part.step()
    now = [option_of(group, key) for group in optimizer.param_groups]
    assert list(map(id, now)) == list(map(id, held))
    assert list(map(float, now)) == [learning_rate(base, curve, 3) for curve in curves]
    assert float(option_of(optimizer.defaults, key)) == np.float32(base), (
        "a new group begins with it"
    )


def test_new_peaks_separate_shared_tensors() -> None:
    optimizer = optimizer_with([None, None], AdamW, lr=torch.tensor(0.5))
    lambda_lr(optimizer, DIFFERENT).set_peak([0.5, 0.25])
    assert lrs_of(optimizer) == [0.5, 0.25]


def test_load_compares_the_curves_of_all_groups() -> None:
    saved = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(saved, CURVE)
    advance(saved, scheduler, 7)
    again = lambda_lr(optimizer_with([0.5, 0.25]), [CURVE, DIFFERENT])
    with pytest.raises(ValueError, match=r"of param_groups\[1\] differ from step 0 on"):
        again.load_state_dict(scheduler.state_dict())


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
        assert lrs_of(resumed) == [learning_rate(0.5, curve, step) for curve in (CURVE, DIFFERENT)]
        advance(resumed, again)


def test_new_group_begins_at_the_peak_after_another_scheduler() -> None:
    """That one has written into the tensor which is the optimizer's default too."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
    ConstantLR(optimizer, 0.5)
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    advance(optimizer, scheduler)
    assert scheduler.base_lrs == [0.5, 0.5]


def test_list_option_stays_a_list() -> None:
    optimizer = optimizer_with([0.1], AdamW)
    optimizer.param_groups[0]["betas"] = [0.5, 0.9]
    follow(optimizer, ("betas", 1), CURVE).step()
    assert optimizer.param_groups[0]["betas"] == [0.5, learning_rate(0.9, CURVE, 1)]


def test_new_group_with_wrong_lr_changes_nothing() -> None:
    run = SchedulerRun(CURVE)
    run.train(1)
    state = run.shown()
    run.add_group(0.1)
    run.optimizer.param_groups[-1]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"param_groups\[2\] = -1.0"):
        run.step_part()
    del run.optimizer.param_groups[-1]
    assert equal_trees(run.shown(), state)


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
