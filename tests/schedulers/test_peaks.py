"""Which of a group's `lr` and `initial_lr` is its peak when a scheduler meets the group."""

import copy
import gc
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with, peaks
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR

from plateau_jax import CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import follow, lambda_lr
from torch_bridge.groups.curves_and_peaks import peaks_of

pytestmark = pytest.mark.usefixtures("frozen")

FALLING = StagedCurve([(40, 0.2, "linear")], start=1.0)
WITH_WARMUP = PlateauCurve(40, warmup_steps=5)
WITH_PLATEAU = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)


def add_group(optimizer: Optimizer, **options: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer.add_param_group({**options, "params": [parameter]})


def falling_lrs(step: int, *peaks: float) -> list[float]:
    """Return the learning rates of groups with these peaks at a step of `FALLING`."""
    return [learning_rate(peak, FALLING, step) for peak in peaks]


# Schedulers that are built on one optimizer, one after another.


def build_curve(optimizer: Optimizer, curve: Any) -> Any:
    return lambda_lr(optimizer, curve)


def build_constant(optimizer: Optimizer, curve: Any) -> Any:
    return ConstantLR(optimizer, 0.3, 4)


def build_linear(optimizer: Optimizer, curve: Any) -> Any:
    return LinearLR(optimizer, 0.01, 1.0, 4)


BUILDERS = [build_curve, build_constant, build_linear, build_curve]


# This library cannot know that one of torch's schedulers has written the learning rate.
@pytest.mark.filterwarnings("ignore:.*If one of torch's schedulers wrote lr")
@examples(40)
@given(
    order=st.sampled_from(list(permutations(BUILDERS))),
    curve=st.sampled_from((FALLING, WITH_WARMUP)),
    updates=st.lists(st.integers(0, 14), min_size=1, max_size=3),
)
def test_torchs_schedulers_leave_the_peak(
    order: Sequence[Any], curve: Any, updates: list[int]
) -> None:
    """Their learning rates are not the user's, even if no update was made under them."""
    optimizer = optimizer_with([0.5, 0.25])
    for count in updates:  # as a cell of a notebook that is run again
        schedulers = [build(optimizer, curve) for build in order]
        sequence = SequentialLR(optimizer, schedulers, [3, 6, 9])
        for scheduler in schedulers:
            assert scheduler.base_lrs == [0.5, 0.25]
        advance(optimizer, sequence, count)


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.itself = self


@pytest.mark.filterwarnings("ignore:.*If one of torch's schedulers wrote lr")
@pytest.mark.parametrize("is_collected", [False, True])
def test_peak_does_not_depend_on_the_garbage_collector(is_collected: bool) -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler)
    Cycle(build_constant(optimizer, FALLING))
    if is_collected:
        gc.collect()
    second = lambda_lr(optimizer, FALLING)
    assert second.base_lrs == [0.5]


# A second scheduler of an optimizer whose `lr` is neither the peak nor what the first one wrote.

UNKNOWN_LR = r"had lr = 0\.07 and, from an earlier scheduler, initial_lr = 0\.5"


@pytest.fixture(params=[float, torch.tensor], ids=["float", "tensor"])
def changed_optimizer(request: pytest.FixtureRequest) -> Optimizer:
    """An optimizer whose learning rate the program has changed after 10 updates."""
    optimizer = optimizer_with([request.param(0.5)])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    optimizer.param_groups[0]["lr"] = request.param(0.07)
    return optimizer


def test_initial_lr_is_the_peak_and_a_warning_names_lr(changed_optimizer: Optimizer) -> None:
    second = lambda_lr(changed_optimizer, FALLING)
    assert second.base_lrs == [0.5]
    assert lrs_of(changed_optimizer) == [0.5]
    with pytest.warns(CurveWarning, match=UNKNOWN_LR) as caught:
        changed_optimizer.step()
    assert len(caught) == 1
    advance(changed_optimizer, second, 30)


def test_advice_for_several_groups_sets_each_peak() -> None:
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    optimizer.param_groups[1]["lr"] = 0.07
    second = lambda_lr(optimizer, FALLING)
    with pytest.warns(CurveWarning, match=r"param_groups\[1\] had lr = 0\.07") as caught:
        optimizer.step()
    (warning,) = caught
    assert "call scheduler.set_peak([0.5, 0.07])," in str(warning.message)
    second.set_peak([0.5, 0.07])
    assert lrs_of(optimizer) == falling_lrs(0, 0.5, 0.07)


def test_unknown_lr_is_named_after_a_range_test() -> None:
    """As after a range test, or under a scheduler that is gone."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 3)
    (group,) = optimizer.param_groups
    for update in range(20):
        group["lr"] = 1e-3 * 1.2**update
        optimizer.step()
    group["lr"] = 0.07
    second = lambda_lr(optimizer, FALLING)
    with pytest.warns(CurveWarning, match=UNKNOWN_LR):
        optimizer.step()
    assert second.base_lrs == [0.5]


def test_lr_becomes_the_peak_by_deleting_initial_lr(changed_optimizer: Optimizer) -> None:
    del changed_optimizer.param_groups[0]["initial_lr"]
    second = lambda_lr(changed_optimizer, FALLING)
    assert second.base_lrs == falling_lrs(0, 0.07)
    advance(changed_optimizer, second, 3)


def test_set_peak_silences_the_warning_about_lr(changed_optimizer: Optimizer) -> None:
    second = lambda_lr(changed_optimizer, FALLING)
    second.set_peak(0.07)
    advance(changed_optimizer, second, 3)
    assert lrs_of(changed_optimizer) == falling_lrs(3, 0.07)


def test_writing_the_peak_into_lr_silences_the_warning(changed_optimizer: Optimizer) -> None:
    changed_optimizer.param_groups[0]["lr"] = 0.5
    second = lambda_lr(changed_optimizer, FALLING)
    advance(changed_optimizer, second, 3)


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_lr_written_after_a_load_warns(kind: Any) -> None:
    """As after the best state has come back. Its own learning rate is silent."""
    optimizer = optimizer_with([0.5], kind)
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 7)
    best = copy.deepcopy(optimizer.state_dict())
    advance(optimizer, scheduler, 7)
    optimizer.load_state_dict(copy.deepcopy(best))
    second = lambda_lr(optimizer, FALLING)
    second.load_state_dict(scheduler.state_dict())
    advance(optimizer, second, 3)

    optimizer.load_state_dict(best)
    optimizer.param_groups[0]["lr"] = 0.07
    third = lambda_lr(optimizer, FALLING)
    with pytest.warns(CurveWarning, match=UNKNOWN_LR):
        optimizer.step()
    assert third.base_lrs == [0.5]


def test_written_lr_is_silent_after_groups_have_moved() -> None:
    optimizer = optimizer_with([0.5, 0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 3)
    optimizer.param_groups.reverse()
    scheduler.get_last_lr()
    advance(optimizer, scheduler, 5)
    second = lambda_lr(optimizer, FALLING)
    advance(optimizer, second, 3)


@pytest.mark.parametrize("updates", [0, 10])
def test_written_lr_is_silent_after_its_scheduler_ends(updates: int) -> None:
    """The first scheduler no longer exists, and groups were added in its time."""

    def train() -> None:
        scheduler = lambda_lr(optimizer, FALLING)
        advance(optimizer, scheduler, updates)
        add_group(optimizer, lr=0.25)
        advance(optimizer, scheduler, updates)

    optimizer = optimizer_with([0.5])
    for _ in range(3):
        train()
    last = lambda_lr(optimizer, FALLING)
    assert last.base_lrs == [0.5, 0.25, 0.25, 0.25]


# Groups that are added with an `initial_lr`.


def test_explicit_initial_lr_is_the_peak() -> None:
    optimizer = optimizer_with([1.0])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    add_group(optimizer, lr=0.01, initial_lr=0.5)
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == falling_lrs(11, 1.0, 0.5)


def test_explicit_initial_lr_is_the_peak_while_waiting() -> None:
    optimizer = optimizer_with([1.0])
    schedulers = [ConstantLR(optimizer, 0.5, 100), lambda_lr(optimizer, FALLING)]
    sequence = SequentialLR(optimizer, schedulers, [5])
    advance(optimizer, sequence, 2)
    add_group(optimizer, lr=0.2, initial_lr=0.4)
    advance(optimizer, sequence, 5)
    assert lrs_of(optimizer) == falling_lrs(2, 1.0, 0.4)


@pytest.mark.parametrize("peak", [0.4, 1.0])
def test_added_group_has_one_peak_under_two_curves(peak: float) -> None:
    optimizer = optimizer_with([1.0])
    schedulers = [lambda_lr(optimizer, WITH_WARMUP), lambda_lr(optimizer, FALLING)]
    sequence = SequentialLR(optimizer, schedulers, [5])
    advance(optimizer, sequence, 2)
    add_group(optimizer, lr=peak)
    advance(optimizer, sequence, 6)
    assert lrs_of(optimizer) == falling_lrs(3, 1.0, peak)


def test_stale_scheduler_with_the_same_values_rejects_no_base() -> None:
    """A base that the program appends for the one that it steps."""
    flat = StagedCurve([(100, 1.0)], start=1.0)
    optimizer = optimizer_with([0.25])
    stepped = lambda_lr(optimizer, flat)
    stale = lambda_lr(optimizer, flat)
    advance(optimizer, stepped, 3)
    add_group(optimizer, lr=0.75)
    stepped.base_lrs.append(0.25)
    advance(optimizer, stepped)
    assert lrs_of(optimizer) == [0.25, 0.25]
    assert stale.base_lrs == [0.25]


# Groups that are made from the options of another group.


class Copied:
    """A run to which a group is added that has the options of another, but its own value."""

    def __init__(self, kind: str) -> None:
        self.optimizer = optimizer_with([0.5], weight_decay=0.5)
        if kind == "scheduler":
            self.name = "lr"
            self.part: Any = lambda_lr(self.optimizer, FALLING)
        else:
            self.name = "weight_decay"
            self.part = follow(self.optimizer, "weight_decay", FALLING)
        self.update(12)

    def update(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.step()
            self.part.step()

    def add(self, **options: Any) -> dict[str, Any]:
        groups = self.optimizer.param_groups
        copied_options = {**groups[0], **options}
        add_group(self.optimizer, **copied_options)
        return groups[-1]

    def values(self) -> list[float]:
        return [group[self.name] for group in self.optimizer.param_groups]

    def weights(self) -> list[float]:
        (weights,) = self.optimizer.param_groups[0]["params"]
        return weights.tolist()


@pytest.fixture(params=["scheduler", "follower"])
def copied(request: pytest.FixtureRequest) -> Copied:
    return Copied(request.param)


def test_copied_base_besides_another_value_is_an_error(copied: Copied) -> None:
    """At the next step of either, before anything is written."""
    group = copied.add(**{copied.name: 0.125})
    values = copied.values()
    weights = copied.weights()
    message = rf"added with {copied.name} = 0\.125.* del group\[.initial_{copied.name}.\]"
    for _ in range(2):
        for step in (copied.optimizer.step, copied.part.step):
            with pytest.raises(ValueError, match=message):
                step()
    assert copied.values() == values
    assert copied.weights() == weights
    assert f"initial_{copied.name}" in group


def test_copied_base_is_mended_by_deleting_it(copied: Copied) -> None:
    group = copied.add(**{copied.name: 0.125})
    del group[f"initial_{copied.name}"]
    copied.update()
    assert copied.values() == falling_lrs(13, 0.5, 0.125)


def test_copied_base_is_kept_by_the_line_of_the_message(copied: Copied) -> None:
    group = copied.add(**{copied.name: 0.125})
    with pytest.raises(ValueError, match=r"write group\[") as caught:
        copied.optimizer.step()
    line = str(caught.value).rpartition("write ")[2]
    number = float(line.partition(" = ")[2])
    assert line == f'group["{copied.name}"] = {number!r}'
    group[copied.name] = number
    copied.update()
    assert copied.values() == falling_lrs(13, 0.5, 0.5)


@pytest.mark.parametrize("set_by_hand", [None, 0.33])
def test_group_that_copies_all_options_has_the_same_base(
    copied: Copied, set_by_hand: float | None
) -> None:
    if set_by_hand is not None:
        copied.optimizer.param_groups[0][copied.name] = set_by_hand
    copied.add()
    copied.add(**{copied.name: 0.5})  # the base itself
    copied.add(**{copied.name: learning_rate(0.5, FALLING, 12)})
    copied.update()
    assert copied.values() == falling_lrs(13, 0.5, 0.5, 0.5, 0.5)


def test_initial_lr_of_a_loaded_group_is_its_peak() -> None:
    """The group is added before the states are loaded, as FinetuningScheduler does."""
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 10)
    optimizer_state = copy.deepcopy(optimizer.state_dict())
    state = copy.deepcopy(scheduler.state_dict())
    resumed = optimizer_with([0.5])
    again = lambda_lr(resumed, FALLING)
    add_group(resumed, lr=0.25)
    resumed.load_state_dict(optimizer_state)
    again.load_state_dict(state)
    assert again.state_dict() == scheduler.state_dict()
    assert lrs_of(resumed) == lrs_of(optimizer)


def test_group_may_be_appended_after_a_load_and_a_look() -> None:
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, FALLING)
    advance(optimizer, scheduler, 5)
    state = scheduler.state_dict()
    add_group(optimizer, lr=0.125)
    scheduler.get_lr()
    scheduler.load_state_dict(state)
    scheduler.base_lrs.append(0.25)
    scheduler.lr_lambdas.append(scheduler.lr_lambdas[0])
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == falling_lrs(6, 0.5, 0.25)


# The peaks of groups, as the program reads and writes them.


@given(peaks, peaks)
def test_peak_is_initial_lr_in_float32(lr: float, peak: float) -> None:
    optimizer = optimizer_with([lr, lr])
    optimizer.param_groups[1]["initial_lr"] = peak
    first = lambda_lr(optimizer, WITH_PLATEAU)
    expected = [float(np.float32(lr)), float(np.float32(peak))]
    assert first.base_lrs == expected
    assert [group["initial_lr"] for group in optimizer.param_groups] == expected
    advance(optimizer, first, 5)
    end_of_warmup = lambda_lr(optimizer, WITH_PLATEAU, last_epoch=9)
    assert end_of_warmup.base_lrs == expected
    assert lrs_of(optimizer) == expected


@pytest.mark.parametrize("build", [AdamW, Adagrad, SGD])
def test_peaks_are_known_in_mid_run(build: Any) -> None:
    """If the optimizer is new, or has an `initial_lr`, or no state shows that it was stepped."""
    new = optimizer_with([0.5], build)
    scheduler = lambda_lr(new, WITH_PLATEAU, 6)
    assert scheduler.base_lrs == [0.5]

    stepped = optimizer_with([0.5], build)
    stepped.step()
    last_epoch = -1
    if build is SGD:
        last_epoch = 6
    scheduler = lambda_lr(stepped, WITH_PLATEAU, last_epoch)
    assert scheduler.base_lrs == [0.5]
    stepped.param_groups[0]["lr"] = 0.01
    scheduler = lambda_lr(stepped, WITH_PLATEAU, 6)
    assert scheduler.base_lrs == [0.5]


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_peak_is_the_number_in_the_tensor(shape: tuple[int, ...], requires_grad: bool) -> None:
    lr = torch.full(shape, 0.7, dtype=torch.float16, requires_grad=requires_grad)
    assert peaks_of(optimizer_with([lr], AdamW)) == [lr.item()]
    # A clone, since torch's schedulers can't fill a leaf of autograd.
    optimizer = optimizer_with([lr.clone()], AdamW)
    scheduler = lambda_lr(optimizer, WITH_PLATEAU, last_epoch=9)  # the end of the warmup
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
    scheduler: Any = lambda_lr(optimizer, WITH_PLATEAU)
    advance(optimizer, scheduler, 20)
    scheduler.base_lrs[1] = 0.7  # as programs for torch's schedulers do
    advance(optimizer, scheduler)
    expected = [learning_rate(peak, WITH_PLATEAU, 21) for peak in (0.1, 0.7)]
    assert lrs_of(optimizer) == expected
    scheduler.base_lrs = np.array([0.3, 0.4])
    advance(optimizer, scheduler)
    expected = [learning_rate(peak, WITH_PLATEAU, 22) for peak in (0.3, 0.4)]
    assert lrs_of(optimizer) == expected


@pytest.mark.parametrize(("peak", "error"), [(None, TypeError), (-1.0, ValueError)])
def test_wrong_peak_written_into_base_lrs(peak: Any, error: type[Exception]) -> None:
    optimizer = optimizer_with([0.1, 0.2])
    scheduler: Any = lambda_lr(optimizer, WITH_PLATEAU)
    advance(optimizer, scheduler, 20)
    before = lrs_of(optimizer)
    scheduler.base_lrs = [0.3, peak]
    with pytest.raises(error, match=r"^base_lrs\[1\] = "):
        advance(optimizer, scheduler)
    assert lrs_of(optimizer) == before


def test_list_with_a_wrong_number_of_items_is_named() -> None:
    optimizer = optimizer_with([0.1, 0.2])
    scheduler = lambda_lr(optimizer, WITH_PLATEAU)
    scheduler.base_lrs.append(0.3)
    with pytest.raises(ValueError, match=r"^base_lrs has 3 items for 2 parameter groups"):
        advance(optimizer, scheduler)
    del scheduler.base_lrs[2]
    scheduler.lr_lambdas.append(WITH_PLATEAU)
    with pytest.raises(ValueError, match=r"^lr_lambdas has 3 items for 2 parameter groups"):
        advance(optimizer, scheduler)
