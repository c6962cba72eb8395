"""Schedulers next to other code: groups that change, wrapped optimizers, states without a curve."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.schedulers.runs import advance, learning_rate, lrs_of, optimizer_with
from support.training.models import Net, mean_loss
from support.training.steps import through_file
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

from plateau_jax import BatchPlan, Curve, CurveWarning, PlateauCurve, StagedCurve
from torch_bridge import TrainStep, follow, lambda_lr

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(50, 20)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(200, decay_shape="linear")
RISING = StagedCurve([(50, 0.25), (100, 1.0)], start=0.5)


def new_parameter() -> Parameter:
    parameter = Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return parameter


def add_group(optimizer: Optimizer, lr: float) -> None:
    optimizer.add_param_group({"params": [new_parameter()], "lr": lr})


def learning_rates(peaks: Sequence[float], curve: Curve, step: int) -> list[float]:
    return [learning_rate(peak, curve, step) for peak in peaks]


# Groups that change under a different scheduler, or one by one.


@pytest.mark.parametrize("kind", [ConstantLR, ExponentialLR])
def test_group_added_under_another_scheduler_is_left_to_it(kind: Any) -> None:
    """This library's scheduler waits for its turn in a `SequentialLR`."""
    optimizer = optimizer_with([0.5])
    first = kind(optimizer, 0.5)
    second = lambda_lr(optimizer, CURVE)
    sequence = SequentialLR(optimizer, [first, second], [4])
    advance(optimizer, sequence, 2)
    add_group(optimizer, 0.25)
    lrs_before = lrs_of(optimizer)
    optimizer.step()
    assert lrs_of(optimizer) == lrs_before
    for group in optimizer.param_groups:
        group["lr"] *= 0.5  # as the scheduler in charge may do
    # As the sequence does, but for the first scheduler, of torch, which accepts no new groups.
    second.step()
    assert lrs_of(optimizer) == learning_rates([0.5, 0.25], CURVE, 0)


def test_group_added_after_the_load_of_a_waiting_scheduler() -> None:
    """It is left alone if the load has written nothing, also if the other values fit by chance."""
    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 20)
    (group,) = optimizer.param_groups
    scheduled = group["lr"]
    group["lr"] = 0.25  # by the scheduler that is in charge now
    optimizer_state = through_file(optimizer.state_dict())
    state = through_file(scheduler.state_dict())

    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    optimizer.load_state_dict(optimizer_state)
    scheduler.load_state_dict(state)
    assert lrs_of(optimizer) == [0.25]
    optimizer.param_groups[0]["lr"] = scheduled  # by that scheduler, some updates later
    add_group(optimizer, 0.125)
    optimizer.step()
    assert lrs_of(optimizer) == [scheduled, 0.125]
    assert scheduler.state_dict()["in_charge"] is False
    advance(optimizer, scheduler)  # its turn
    assert scheduler.state_dict()["in_charge"] is True
    add_group(optimizer, 0.25)
    optimizer.step()
    assert lrs_of(optimizer) == learning_rates([0.5, 0.125, 0.25], CURVE, 21)

    optimizer = optimizer_with([0.5])
    scheduler = lambda_lr(optimizer, CURVE)
    scheduler.load_state_dict(state)  # it writes, as the optimizer has loaded nothing
    assert lrs_of(optimizer) == [scheduled]
    add_group(optimizer, 0.125)
    optimizer.step()
    assert lrs_of(optimizer) == learning_rates([0.5, 0.125], CURVE, 20)
    assert scheduler.state_dict()["in_charge"] is True


def test_added_group_keeps_its_peak_under_the_next_scheduler() -> None:
    """The scheduler in charge has written its `initial_lr`, which is also that of a frozen one."""
    optimizer = optimizer_with([0.5, 0.25])
    frozen = optimizer.param_groups[0]
    first = lambda_lr(optimizer, CURVE)
    second = lambda_lr(optimizer, LINEAR)
    sequence = SequentialLR(optimizer, [first, second], [4])
    advance(optimizer, sequence, 2)
    frozen["lr"] = 0.0
    add_group(optimizer, 0.5)
    for step in (2, 3):
        optimizer.step()
        assert lrs_of(optimizer)[1:] == learning_rates([0.25, 0.5], CURVE, step)
        sequence.step()
        frozen["lr"] = 0.0
    for step in (0, 1):
        assert lrs_of(optimizer)[1:] == learning_rates([0.25, 0.5], LINEAR, step)
        advance(optimizer, sequence)


@pytest.mark.parametrize("stage", [2, 3])
def test_one_call_for_each_group_is_one_update(stage: int) -> None:
    """DeepSpeed shows one group at a time, or empties the others. No group is lost; no warning."""
    curve = PlateauCurve(1000)
    optimizer = optimizer_with([0.5] * 24)
    scheduler = lambda_lr(optimizer, curve)
    groups = optimizer.param_groups
    parameters = [group["params"] for group in groups]
    for step in range(100):
        for group, parameters_of_group in zip(groups, parameters, strict=True):
            assert group["lr"] == learning_rate(0.5, curve, step)
            if stage == 2:
                optimizer.param_groups = [group]
            for any_group in groups:
                any_group["params"] = []
            group["params"] = parameters_of_group
            optimizer.step()
        optimizer.param_groups = groups
        scheduler.step()


def optimizer_without_groups() -> Optimizer:
    optimizer = optimizer_with([0.5], AdamW)
    optimizer.step()
    optimizer.param_groups.clear()
    return optimizer


def test_optimizer_without_groups_gets_one_later() -> None:
    optimizer = optimizer_without_groups()
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 60)
    add_group(optimizer, 0.25)
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == [learning_rate(0.25, CURVE, 61)]
    assert scheduler.get_last_lr() == [learning_rate(0.25, CURVE, 61)]


def test_clock_of_an_optimizer_without_groups() -> None:
    optimizer = optimizer_without_groups()
    scheduler = lambda_lr(optimizer, CURVE, 5)
    assert scheduler.curve_step == 6
    of_samples = BatchPlan([(0, 8)]).scale(CURVE, 8, reference=8)
    scheduler = lambda_lr(optimizer, of_samples)
    assert scheduler.unit == 8


# Factors of an option in the groups.


def optimizer_with_factors(key: str, factors: Sequence[float], **options: Any) -> Any:
    groups = [{"params": [new_parameter()], key: factor} for factor in factors]
    return AdamW(groups, **options)


@pytest.mark.parametrize("key", ["lr_scale", "lr_mult", "lr_multiplier"])
@pytest.mark.parametrize("form", [float, torch.tensor])
def test_factor_of_a_learning_rate_warns_with_its_remedy(key: str, form: Any) -> None:
    optimizer = optimizer_with_factors(key, [1.0, 1], lr=form(0.5))
    lambda_lr(optimizer, LINEAR)

    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], lr=form(0.5))
    message = f"2 of 3 parameter groups have a factor {key}"
    with pytest.warns(CurveWarning, match=message) as caught:
        lambda_lr(optimizer, LINEAR)
    assert str(caught[0].message).endswith(
        f': group["initial_lr"] = group.get("initial_lr", group["lr"]) * group.pop("{key}")'
    )

    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], lr=form(0.5))
    for group in optimizer.param_groups:
        group["initial_lr"] = group.get("initial_lr", group["lr"]) * group.pop(key)
    scheduler = lambda_lr(optimizer, LINEAR)
    advance(optimizer, scheduler)
    assert lrs_of(optimizer) == learning_rates([0.5, 0.25, 0.125], LINEAR, 1)

    optimizer.add_param_group({"params": [new_parameter()], key: 0.5})
    message = f"1 of 1 parameter groups have a factor {key}"
    with pytest.warns(CurveWarning, match=message):
        optimizer.step()


@pytest.mark.parametrize("form", [float, torch.tensor])
def test_factor_of_a_weight_decay_warns_with_its_remedy(form: Any) -> None:
    key = "wd_multiplier"
    optimizer = optimizer_with_factors(key, [1.0, 1], weight_decay=form(0.5))
    follow(optimizer, "weight_decay", LINEAR)

    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], weight_decay=form(0.5))
    message = f"2 of 3 parameter groups have a factor {key}"
    with pytest.warns(CurveWarning, match=message) as caught:
        follow(optimizer, "weight_decay", LINEAR)
    assert str(caught[0].message).endswith(
        ': group["initial_weight_decay"] = group.get("initial_weight_decay", '
        'group["weight_decay"]) * group.pop("wd_multiplier")'
    )

    optimizer = optimizer_with_factors(key, [1.0, 0.5, 0.25], weight_decay=form(0.5))
    for group in optimizer.param_groups:
        base = group.get("initial_weight_decay", group["weight_decay"])
        group["initial_weight_decay"] = base * group.pop("wd_multiplier")
    follower = follow(optimizer, "weight_decay", LINEAR)
    optimizer.step()
    follower.step()
    decays = [float(group["weight_decay"]) for group in optimizer.param_groups]
    assert decays == learning_rates([0.5, 0.25, 0.125], LINEAR, 1)

    optimizer.add_param_group({"params": [new_parameter()], key: 0.5})
    message = f"1 of 1 parameter groups have a factor {key}"
    with pytest.warns(CurveWarning, match=message):
        optimizer.step()


def test_factor_in_a_group_of_a_training_step_warns() -> None:
    model = Net()
    optimizer = SGD([{"params": model.parameters(), "lr_scale": 0.5}], lr=0.5)
    with pytest.warns(CurveWarning, match="have a factor lr_scale"):
        TrainStep(model, optimizer, mean_loss, CURVE)


# Optimizers that are not plain.


class WithoutHooks(Optimizer):
    """A wrapper that is an optimizer only by its class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.defaults = inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class Stepper:
    """An object that makes the update in a method."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.inner_step = step

    def step(self) -> None:
        self.inner_step()


def with_partial_step(optimizer: Any) -> Any:
    optimizer.step = partial(optimizer.step)
    return optimizer


def with_method_of_another_object(optimizer: Any) -> Any:
    optimizer.step = Stepper(optimizer.step).step
    return optimizer


def with_compiled_step(optimizer: Any) -> Any:
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    return optimizer


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    "wrap",
    [
        with_partial_step,
        with_method_of_another_object,
        pytest.param(with_compiled_step, marks=pytest.mark.slow),
        WithoutHooks,
    ],
)
def test_optimizer_that_is_not_plain_trains_with_the_curve(wrap: Callable[[Any], Any]) -> None:
    inner = optimizer_with([torch.tensor(0.5)])
    optimizer = wrap(inner)
    scheduler = lambda_lr(optimizer, CURVE)
    decay = follow(optimizer, "weight_decay", CURVE)
    plain = optimizer_with([torch.tensor(0.5)])
    plain_scheduler = lambda_lr(plain, CURVE)
    for step in range(5):
        assert lrs_of(inner) == [learning_rate(0.5, CURVE, step)]
        advance(optimizer, scheduler)
        decay.step()
        advance(plain, plain_scheduler)
    (inner_group,) = inner.param_groups
    (plain_group,) = plain.param_groups
    torch.testing.assert_close(inner_group["params"], plain_group["params"], rtol=0, atol=0)

    inner.add_param_group({"params": [new_parameter()], "lr": torch.tensor(0.25)})
    advance(optimizer, scheduler)
    assert lrs_of(inner) == learning_rates([0.5, 0.25], CURVE, 6)
    scheduler.load_state_dict(through_file(scheduler.state_dict()))


# The order of steps.


@pytest.mark.parametrize("kind", [lambda_lr, LambdaLR])
def test_first_step_before_the_optimizers_warns_as_in_torch(kind: Any) -> None:
    scheduler = kind(optimizer_with([0.5]), CURVE)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step"):
        scheduler.step()
    for _ in range(5):
        scheduler.step()


def test_second_scheduler_of_a_stepped_optimizer_does_not_warn() -> None:
    optimizer = optimizer_with([0.5])
    first = lambda_lr(optimizer, CURVE)
    advance(optimizer, first)
    second = lambda_lr(optimizer, CURVE)
    second.step()


def test_step_of_a_copy_does_not_warn() -> None:
    """Of a copy torch says that `optimizer.step` was replaced."""
    scheduler = lambda_lr(optimizer_with([0.5]), CURVE)
    copied = copy.deepcopy(scheduler)
    copied.step()


# States.


def loaded(state: Any, peak: float) -> lambda_lr:
    scheduler = lambda_lr(optimizer_with([peak, peak]), CURVE)
    scheduler.load_state_dict(through_file(state))
    return scheduler


def trained(peak: float) -> lambda_lr:
    """Return a scheduler after 20 updates."""
    optimizer = optimizer_with([peak, peak])
    scheduler = lambda_lr(optimizer, CURVE)
    advance(optimizer, scheduler, 20)
    return scheduler


def test_saved_peak_is_used_and_warns() -> None:
    saved = trained(0.5)
    with pytest.warns(CurveWarning, match=r"peak_value=0\.5, now 0\.25\. .*set_peak\(0\.25\)"):
        scheduler = loaded(saved.state_dict(), 0.25)
    assert lrs_of(scheduler.optimizer) == lrs_of(saved.optimizer)


def test_states_of_later_runs_hand_on_a_peak_that_was_set() -> None:
    saved = trained(0.5)
    with pytest.warns(CurveWarning, match=r"now 0\.25"):
        scheduler = loaded(saved.state_dict(), 0.25)
    scheduler.set_peak(0.25)
    for _ in range(2):
        scheduler = loaded(scheduler.state_dict(), 0.125)
        assert scheduler.base_lrs == [0.25, 0.25]
    advance(scheduler.optimizer, scheduler)
    scheduler.load_state_dict(saved.state_dict())  # a rollback in a run that has set its peak


def step_with_peak(peak: float) -> TrainStep:
    model = Net()
    return TrainStep(model, SGD(model.parameters(), lr=peak), mean_loss, CURVE)


def test_saved_peak_of_a_training_step_warns_too() -> None:
    saved = step_with_peak(0.5)
    step = step_with_peak(0.25)
    message = r"peak_value=0\.5, now 0\.25\. .*step\.set_peak\(0\.25\)"
    with pytest.warns(CurveWarning, match=message):
        step.load_state_dict(through_file(saved.state_dict()))
    step.load_state_dict(saved.state_dict())
    step.set_peak(0.25)
    for _ in range(2):
        state = through_file(step.state_dict())
        step = step_with_peak(0.125)
        step.load_state_dict(state)
    last_state: Any = step.state_dict()
    (group,) = last_state["optimizer"]["param_groups"]
    assert group["initial_lr"] == 0.25


def decay_after(updates: int, weight_decay: float) -> follow:
    optimizer = optimizer_with([0.5, 0.5], weight_decay=weight_decay)
    decay = follow(optimizer, "weight_decay", CURVE)
    for _ in range(updates):
        decay.step()
    return decay


def test_saved_base_of_a_follower_warns_until_it_is_set() -> None:
    saved = decay_after(20, 0.5)
    decay = decay_after(0, 0.25)
    message = r"a different base: .*=0\.5, now 0\.25\. .* with 0\.5; .*set_base_value\(0\.25\)"
    with pytest.warns(CurveWarning, match=message):
        decay.load_state_dict(through_file(saved.state_dict()))
    assert decay.base_values == [0.5, 0.5]
    decay.set_base_value([0.25, 0.125])
    values = [group["weight_decay"] for group in decay.optimizer.param_groups]
    assert values == learning_rates([0.25, 0.125], CURVE, 20)
    for _ in range(2):
        state = through_file(decay.state_dict())
        decay = decay_after(0, 0.125)
        decay.load_state_dict(state)
        assert decay.base_values == [0.25, 0.125]
    decay.step()
    decay.load_state_dict(saved.state_dict())  # a rollback in a run that has set its base


def test_peak_set_before_the_load_is_replaced_with_a_warning() -> None:
    state = trained(0.5).state_dict()
    scheduler = lambda_lr(optimizer_with([0.125, 0.125]), CURVE)
    scheduler.set_peak(0.25)
    with pytest.warns(CurveWarning, match=r"peak_value=0\.5, now 0\.25\. .*set_peak\(0\.25\)"):
        scheduler.load_state_dict(state)
    assert scheduler.base_lrs == [0.5, 0.5]

    state_of_decay = decay_after(20, 0.5).state_dict()
    decay = decay_after(0, 0.125)
    decay.set_base_value(0.25)
    with pytest.warns(CurveWarning, match=r"=0\.5, now 0\.25\. .*set_base_value\(0\.25\)"):
        decay.load_state_dict(state_of_decay)
    assert decay.base_values == [0.5, 0.5]


@pytest.mark.parametrize("optimizer_is_loaded", [False, True])
@pytest.mark.parametrize("curve", [CURVE, CURVE.part(0, 40).then(LINEAR), CURVE.cooldown(40, 9)])
def test_state_of_a_scheduler_on_the_same_optimizer(
    curve: Curve, optimizer_is_loaded: bool
) -> None:
    optimizer = optimizer_with([0.5, 0.25])
    old = lambda_lr(optimizer, CURVE)
    advance(optimizer, old, 40)
    state = optimizer.state_dict()
    new = lambda_lr(optimizer, curve)
    if optimizer_is_loaded:
        optimizer.load_state_dict(copy.deepcopy(state))
    new.load_state_dict(old.state_dict())
    for step in (40, 41):
        assert lrs_of(optimizer) == learning_rates([0.5, 0.25], curve, step)
        assert new.get_last_lr() == lrs_of(optimizer)
        advance(optimizer, new)


def inverse_decay(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


def warmup_then_cosine(optimizer: Optimizer) -> SequentialLR:
    warmup = LinearLR(optimizer, 0.1, total_iters=5)
    decay = CosineAnnealingLR(optimizer, 50)
    return SequentialLR(optimizer, [warmup, decay], [5])


def chain(optimizer: Optimizer) -> ChainedScheduler:
    return ChainedScheduler([warmup_then_cosine(optimizer)])


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # which SequentialLR passes
@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.parametrize("build_without_a_curve", [inverse_decay, warmup_then_cosine, chain])
def test_state_without_a_curve_continues_at_its_step(
    build_without_a_curve: Callable[[Optimizer], LRScheduler], optimizer_first: bool
) -> None:
    old_optimizer = optimizer_with([0.5, 0.25])
    old_scheduler = build_without_a_curve(old_optimizer)
    advance(old_optimizer, old_scheduler, 12)
    optimizer = optimizer_with([0.5, 0.25])
    scheduler = lambda_lr(optimizer, CURVE)
    if optimizer_first:
        optimizer.load_state_dict(through_file(old_optimizer.state_dict()))
    with pytest.warns(CurveWarning, match="without a curve: this curve continues at step 12"):
        scheduler.load_state_dict(copy.deepcopy(old_scheduler.state_dict()))
    for step in (12, 13):
        assert lrs_of(optimizer) == learning_rates([0.5, 0.25], CURVE, step)
        advance(optimizer, scheduler)

    resumed = optimizer_with([0.5, 0.25])
    # The state has a curve now, so this does not warn.
    lambda_lr(resumed, CURVE).load_state_dict(scheduler.state_dict())
    assert lrs_of(resumed) == lrs_of(optimizer)
