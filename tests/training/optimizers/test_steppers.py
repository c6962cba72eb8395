"""Who steps an optimizer, and when: kernels that skip on the device, changed settings, momentum."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.lines import Lines, Stop
from support.schedulers.runs import learning_rate
from support.training.by_hand import ByHand
from support.training.kind import Kind
from support.training.kinds_of_run import KINDS
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import (
    ADAGRAD_RECREATES_STATES,
    FUSED,
    OPTIMIZERS,
    by_layer,
    make_optimizer,
)
from support.training.reads import reads_of
from support.training.steps import CURVE, is_refused, make_step, state_kept_by_skips, train
from support.trees import equal_trees
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, follow


def states_of(optimizer: Optimizer) -> Any:
    """Return copies of an optimizer's states, with tensors for the counts that are numbers."""
    copies: dict[Any, Any] = {}
    for key, state in optimizer.state_dict()["state"].items():
        copies[key] = {name: torch.as_tensor(value).clone() for name, value in state.items()}
    return copies


@dataclass
class Change:
    """A change before an update."""

    action: str
    """`fused` or `not fused` of these groups, or `clear` the states."""
    groups: list[int]
    is_bad: bool
    """The update is skipped."""


changes = st.builds(
    Change,
    action=st.sampled_from(["not fused", "fused", "fused", "clear"]),
    groups=st.sampled_from([[0], [1], [0, 1]]),
    is_bad=st.booleans(),
)


def apply_change(change: Change, name: str, optimizer: Optimizer) -> None:
    if change.action == "clear":
        if name != "adagrad" or ADAGRAD_RECREATES_STATES:
            optimizer.state.clear()
        return
    for index in change.groups:
        optimizer.param_groups[index]["fused"] = change.action == "fused"


@pytest.mark.parametrize("name", [*FUSED, "dampened"])
@examples(8)
@given(st.lists(changes, min_size=8, max_size=12))
def test_changes_between_updates_take_effect(name: str, changes: list[Change]) -> None:
    """The first momentum may come after any of them."""
    kind = Kind(by_layer(name))
    step = kind.build()
    by_hand = ByHand(kind)
    (reference,) = by_hand.optimizers
    for change, batch in zip(changes, batches(len(changes)), strict=True):
        apply_change(change, name, step.optimizer)
        apply_change(change, name, reference)
        if change.is_bad:
            batch = nonfinite(batch)
        assert equal_trees(tuple(step(batch)), by_hand.update([batch]))
        assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        if not change.is_bad:  # a skipped step may have created states, as zeros
            assert equal_trees(states_of(step.optimizer), states_of(reference))


@pytest.mark.parametrize("name", ["adamw", "momentum", "nesterov", "plain momentum", "rmsprop"])
def test_frozen_parameters_may_join_later(name: str) -> None:
    """The updates are those of an optimizer that is not fused."""
    kind = Kind(name)
    step, by_hand = kind.build(), ByHand(kind)
    by_hand.groups[0]["fused"] = False
    for number, batch in enumerate(batches(8)):
        for model in (step.model, by_hand.model):
            model.last.weight.requires_grad_(number in (3, 4, 7))
            model.first.bias.requires_grad_(number not in (5, 6))
        if number == 3:
            batch = nonfinite(batch)
        assert equal_trees(step(batch).counters, by_hand.update([batch]).counters)
        expected = by_hand.model.state_dict()
        torch.testing.assert_close(step.model.state_dict(), expected, rtol=1e-5, atol=1e-6)


def test_reads_follow_the_fused_setting() -> None:
    step = make_step("adamw")
    (batch,) = batches(1)

    def check_reads_nothing() -> None:
        step.optimizer.param_groups[0]["fused"] = True
        step(batch)
        assert reads_of(lambda: step(batch)) == 0
        assert reads_of(lambda: step(nonfinite(batch))) == 0

    check_reads_nothing()
    for not_fused in (False, None):
        step.optimizer.param_groups[0]["fused"] = not_fused
        step(batch)
        assert reads_of(lambda: step(batch)) > 0
        assert reads_of(lambda: step(nonfinite(batch))) == 1
        check_reads_nothing()


# Several optimizers, or several steps.


class Derived(Adam):
    """A subclass may do anything, so the host steps it."""


FUSED_ADAM = partial(Adam, fused=True)
FUSED_MOMENTUM = partial(SGD, lr=0.1, momentum=0.9, fused=True)


def loss_with_root(model: Any, batch: Any) -> torch.Tensor:
    """Add a value whose derivative is infinite if the switch is 1 and the last bias is zero.

    The loss is finite, and so are the derivatives with respect to the other parameters.
    """
    inputs, targets, switch = batch
    root = (model.last.bias * switch + 1 - switch).sqrt()
    return mean_loss(model, (inputs, targets)) + root.sum()


@pytest.mark.parametrize(
    ("first", "last", "reads"),
    [
        (FUSED_ADAM, FUSED_MOMENTUM, 0),
        (FUSED_ADAM, RMSprop, 1),
        (partial(Derived, fused=True), FUSED_ADAM, 1),
    ],
    ids=["fused", "one on the host", "a subclass"],
)
def test_optimizers_share_one_read_and_one_decision(first: Any, last: Any, reads: int) -> None:
    """A bad gradient of one parameter skips the other optimizer too."""
    model = Net()
    optimizers = [first(model.first.parameters()), last(model.last.parameters())]
    step = make_step(model=model, optimizer=optimizers, loss_fn=loss_with_root)
    ((inputs, targets),) = batches(1)
    results: list[Any] = []

    def bad_update() -> None:
        results.append(step((inputs, targets, 1.0)))

    for skipped in (1, 2):
        torch.nn.init.zeros_(model.last.bias)
        before = copy.deepcopy(model.state_dict())
        states = list(map(states_of, optimizers))
        assert reads_of(bad_update) == reads
        result = results[-1]
        assert result.loss.isfinite()
        assert result.applied == skipped - 1
        assert result.skipped == skipped
        assert equal_trees(model.state_dict(), before)
        if skipped > 1:  # the first one may have created states, as zeros
            assert equal_trees(list(map(states_of, optimizers)), states)
        step((inputs, targets, 0.0))


LINEAR = PlateauCurve(30, decay_shape="linear")


@pytest.mark.parametrize("kind", [AdamW, RMSprop])
def test_sequence_of_one_equals_single_optimizer(kind: Any) -> None:
    def optimizer_of(model: Net) -> Optimizer:
        groups = [{"params": model.first.parameters()}, {"params": model.last.parameters()}]
        return kind(groups, lr=0.01)

    curves = [CURVE, LINEAR]
    model = Net()
    single = make_step(model=model, optimizer=optimizer_of(model), curve=curves)
    model = Net()
    listed = make_step(model=model, optimizer=(optimizer_of(model),), curve=(curves,))
    assert equal_trees(train(single, batches(3)), train(listed, batches(3)))
    assert equal_trees(single.state_dict(), listed.state_dict())
    assert listed.optimizer is listed.optimizers[0]
    listed.load_state_dict(single.state_dict())
    single.load_state_dict(listed.state_dict())


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_two_steps_share_one_optimizer(name: str) -> None:
    """Each has a separate clock, and attaches its learning rates when it is called."""
    model = Net()
    optimizer = make_optimizer(name, model)
    peak = OPTIMIZERS[name].keywords["lr"]
    curves = [CURVE, LINEAR]
    steps = [TrainStep(model, optimizer, mean_loss, curve) for curve in curves]
    for applied, batch in enumerate(batches(6)):
        for step, curve in zip(steps, curves, strict=True):
            lr = step(batch).lr.item()
            assert lr == float(optimizer.param_groups[0]["lr"])
            assert lr == learning_rate(peak, curve, applied)


def test_other_step_wrappers_are_accepted() -> None:
    """A user's replacement of `step`, and a curve for another hyperparameter."""
    step = make_step()
    first, *rest = batches(3)
    step(first)
    calls: list[Any] = []
    inner: Any = step.optimizer.step

    def counted(*arguments: Any) -> None:
        calls.append(arguments)
        inner(*arguments)

    step.optimizer.step = counted  # type: ignore[method-assign]  (as profilers do it)
    follow(step.optimizer, "weight_decay", CURVE)
    train(step, rest)
    assert len(calls) == 2


class WithNumbers(SGD):
    """Has attributes with the names of SAM's methods."""

    first_step = 0
    second_step = 100


class WithFirstStep(SGD):
    def first_step(self) -> None: ...


@pytest.mark.parametrize("kind", [WithNumbers, WithFirstStep])
def test_optimizer_that_only_resembles_sam_is_stepped(kind: Any) -> None:
    model = Net()
    step = make_step(model=model, optimizer=kind(model.parameters(), lr=0.1))
    reference = make_step("sgd")
    reference.optimizer.param_groups[0]["fused"] = False
    assert equal_trees(train(step, batches(3)), train(reference, batches(3)))


# An interrupted update took place, changed nothing, or makes the step reject the next one.

TORCHS_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def interrupted(
    build: Callable[[], TrainStep], action: Callable[[TrainStep], Any], every: int = 1
) -> Iterator[TrainStep]:
    """Yield steps whose action was interrupted at each line, or at each n-th."""
    for stop_at in itertools.count(1, every):
        step = build()
        try:
            with Lines(stop_at, TORCHS_OPTIMIZERS):
                action(step)
        except Stop:
            # Python does not leave a `with` that is interrupted at its end.
            while torch.is_autocast_enabled("cpu"):
                torch.set_autocast_enabled("cpu", False)
                torch.autocast_decrement_nesting()
            yield step
        else:
            return


def updates_of(step: TrainStep) -> int:
    state = step.state_dict()
    return state["applied"] + state["skipped"]


def check_interrupted_update(name: str, updates: int, precision: str, every: int) -> set[str]:
    """Interrupt the update after `updates`, and return what the interrupts led to."""
    data = batches(updates + 2)
    if precision == "fp16":
        # Its gradients overflow, so it is skipped, and the loss scale is halved.
        inputs, targets = data[updates]
        data[updates] = inputs, targets * 1e4

    def build() -> TrainStep:
        step = KINDS[name].build(precision=precision)
        train(step, data[:updates])
        return step

    uninterrupted = build()
    saved = uninterrupted.state_dict()
    before = state_kept_by_skips(uninterrupted)
    result = uninterrupted(data[updates])
    after = state_kept_by_skips(uninterrupted)
    next_result = uninterrupted(data[updates + 1])

    outcomes: set[str] = set()
    for step in interrupted(build, lambda step: step(data[updates]), every):
        is_rejected = is_refused(step)
        if is_rejected:
            step.load_state_dict(saved)
        took_place = updates_of(step) > updates
        if took_place:
            outcomes.add("took place")
            assert equal_trees(state_kept_by_skips(step), after)
            assert equal_trees(step(data[updates + 1]), next_result)
            continue
        if is_rejected:
            outcomes.add("rejected")
        else:
            outcomes.add("nothing changed")
        assert equal_trees(state_kept_by_skips(step), before)
        assert equal_trees(step(data[updates]), result)
    return outcomes


@pytest.mark.parametrize(
    ("name", "precision", "every"), [("held", "fp16", 12), ("aux, bf16", "bf16", 16)]
)
def test_update_interrupted_at_some_lines(name: str, precision: str, every: int) -> None:
    check_interrupted_update(name, 1, precision, every)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "updates", "precision"),
    [
        ("adamw", 2, "fp32"),
        ("adamw", 1, "fp16"),
        ("momentum", 0, "fp32"),
        ("plain adam", 1, "fp16"),
        ("two optimizers", 2, "fp32"),
    ],
)
def test_update_interrupted_at_any_line(name: str, updates: int, precision: str) -> None:
    outcomes = check_interrupted_update(name, updates, precision, every=1)
    assert outcomes == {"took place", "nothing changed", "rejected"}


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_set_peak_keeps_an_interrupted_update(every: int) -> None:
    """A new peak makes no step usable, and no usable step unusable."""
    *data, last = batches(3)

    def build() -> TrainStep:
        step = make_step("adamw")
        train(step, data)
        return step

    for step in interrupted(build, lambda step: step(last), every):
        refused_before = is_refused(step)
        step.set_peak(0.25)
        assert is_refused(step) == refused_before


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["adamw", "two optimizers"])
def test_new_groups_are_attached_after_an_interrupt(name: str, every: int) -> None:
    """A load replaces the groups, and the interrupt comes while the step attaches to them."""
    *data, last = batches(3)

    def build() -> TrainStep:
        step = KINDS[name].build()
        train(step, data)
        for optimizer in step.optimizers:
            optimizer.load_state_dict(optimizer.state_dict())
        return step

    reference = build()
    result = reference(last)
    for step in interrupted(build, lambda step: step._steppers.prepare(), every):
        assert not is_refused(step)
        assert equal_trees(step(last), result)
        assert equal_trees(states_of(step.optimizers[0]), states_of(reference.optimizers[0]))


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_set_peak_interrupted_at_any_line(every: int) -> None:
    *data, last = batches(4)

    def build() -> TrainStep:
        step = make_step("adamw")
        train(step, data)
        return step

    saved = build().state_dict()
    for step in interrupted(build, lambda step: step.set_peak(0.25), every):
        if is_refused(step):
            step.load_state_dict(saved)
        peak = step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"]
        assert step(last).lr.item() == torch.tensor(CURVE(3) * peak).item()
