"""Who steps an optimizer, and when: kernels that skip on the device, changed settings, momentum."""

import copy
import itertools
from collections.abc import Callable, Iterator
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
from support.training.kinds_of_run import KINDS, Kind, by_layer
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import ADAGRAD_RECREATES_STATES, FUSED, OPTIMIZERS, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, equal_trees, is_refused, make_step, state_kept_by_skips, train
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, follow


def _state(optimizer: Optimizer) -> Any:
    """Return copies of an optimizer's states, with tensors for the counts that are numbers."""
    return {
        key: {name: torch.as_tensor(value).clone() for name, value in state.items()}
        for key, state in optimizer.state_dict()["state"].items()
    }


@pytest.mark.parametrize("name", [*FUSED, "dampened"])
@examples(8)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([False, True, True, "clear"]), st.sampled_from([[0], [1], [0, 1]]), st.booleans()
        ),
        min_size=8,
        max_size=12,
    )
)
def test_changes_between_updates_take_effect(name: str, changes: list[Any]) -> None:
    """A changed `fused`, deleted states, and bad updates: the first momentum may come after any of them."""
    kind = Kind(by_layer(name))
    can_clear = name != "adagrad" or ADAGRAD_RECREATES_STATES
    step, by_hand = kind.build(), ByHand(kind)
    for (change, groups, is_bad), batch in zip(changes, batches(len(changes)), strict=True):
        for optimizer in (step.optimizer, *by_hand.optimizers):
            if change == "clear":
                if can_clear:
                    optimizer.state.clear()
                continue
            for group in groups:
                optimizer.param_groups[group]["fused"] = change
        inputs = nonfinite(batch) if is_bad else batch
        assert equal_trees(tuple(step(inputs)), by_hand.update([inputs]))
        assert equal_trees(step.model.state_dict(), by_hand.model.state_dict())
        if not is_bad:  # a skipped step may have created states, as zeros
            assert equal_trees(_state(step.optimizer), _state(by_hand.optimizers[0]))


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
        inputs = nonfinite(batch) if number == 3 else batch
        assert equal_trees(step(inputs).counters, by_hand.update([inputs])[3])
        states = step.model.state_dict(), by_hand.model.state_dict()
        torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


def test_reads_follow_the_fused_setting() -> None:
    step, (batch,) = make_step("adamw"), batches(1)
    for fused in (True, False, True, None, True):
        step.optimizer.param_groups[0]["fused"] = fused
        step(batch)
        assert (reads_of(lambda: step(batch)) == 0) is bool(fused)
        assert reads_of(lambda: step(nonfinite(batch))) == (0 if fused else 1)


class _Derived(Adam):
    """A subclass may do anything, so the host steps it."""


_FUSED, _MOMENTUM = partial(Adam, fused=True), partial(SGD, lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize(
    ("first", "last", "reads"),
    [(_FUSED, _MOMENTUM, 0), (_FUSED, RMSprop, 1), (partial(_Derived, fused=True), _FUSED, 1)],
)
def test_optimizers_share_one_read_and_one_decision(first: Any, last: Any, reads: int) -> None:
    """A bad gradient of one parameter skips the other optimizer too."""

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        # Infinite only in the derivative with respect to the last layer's bias.
        return mean_loss(model, batch) + (model.last.bias * batch[2] + 1 - batch[2]).sqrt().sum()

    model = Net()
    optimizers = [first(model.first.parameters()), last(model.last.parameters())]
    step = make_step(model=model, optimizer=optimizers, loss_fn=loss_fn)
    (batch,) = batches(1)
    results: list[Any] = []
    for skipped in (1, 2):
        torch.nn.init.zeros_(model.last.bias)
        before, states = copy.deepcopy(model.state_dict()), list(map(_state, optimizers))
        assert reads_of(lambda: results.append(step((*batch, 1.0)))) == reads
        assert results[-1].loss.isfinite()
        assert (results[-1].applied, results[-1].skipped) == (skipped - 1, skipped)
        assert equal_trees(model.state_dict(), before)
        assert skipped == 1 or equal_trees(list(map(_state, optimizers)), states)
        step((*batch, 0.0))


LINEAR = PlateauCurve(30, decay_shape="linear")


@pytest.mark.parametrize("kind", [AdamW, RMSprop])
def test_sequence_of_one_equals_single_optimizer(kind: Any) -> None:
    def build(wrap: Any) -> TrainStep:
        model = Net()
        groups = [{"params": part.parameters()} for part in (model.first, model.last)]
        return make_step(model=model, optimizer=wrap(kind(groups, lr=0.01)), curve=wrap([CURVE, LINEAR]))

    one, listed = build(lambda value: value), build(lambda value: (value,))
    assert equal_trees(train(one, batches(3)), train(listed, batches(3)))
    assert equal_trees(one.state_dict(), listed.state_dict())
    assert listed.optimizer is listed.optimizers[0]
    listed.load_state_dict(one.state_dict())
    one.load_state_dict(listed.state_dict())


@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_two_steps_share_one_optimizer(name: str) -> None:
    """Each has a separate clock, and attaches its learning rates when it is called."""
    model = Net()
    optimizer = make_optimizer(name, model)
    steps = [TrainStep(model, optimizer, mean_loss, curve) for curve in (CURVE, LINEAR)]
    for applied, batch in enumerate(batches(6)):
        for step, curve in zip(steps, (CURVE, LINEAR), strict=True):
            lr = step(batch).lr.item()
            assert lr == float(optimizer.param_groups[0]["lr"])
            assert lr == learning_rate(OPTIMIZERS[name][1]["lr"], curve, applied)


def test_other_step_wrappers_are_accepted() -> None:
    """A user's replacement of `step`, and a curve for another hyperparameter."""
    step, data, calls = make_step(), batches(3), list[int]()
    inner: Any = step.optimizer.step
    step(data[0])

    def counted(*arguments: Any) -> None:
        calls.append(1)
        inner(*arguments)

    step.optimizer.step = counted  # type: ignore[method-assign]  (as profilers do it)
    follow(step.optimizer, "weight_decay", CURVE)
    train(step, data[1:])
    assert len(calls) == 2


class _WithNumbers(SGD):
    """Has attributes with the names of SAM's methods."""

    first_step, second_step = 0, 100


class _WithFirstStep(SGD):
    def first_step(self) -> None: ...


@pytest.mark.parametrize("kind", [_WithNumbers, _WithFirstStep])
def test_optimizer_that_only_resembles_sam_is_stepped(kind: Any) -> None:
    model = Net()
    step, reference = make_step(model=model, optimizer=kind(model.parameters(), lr=0.1)), make_step("sgd")
    reference.optimizer.param_groups[0]["fused"] = False
    assert equal_trees(train(step, batches(3)), train(reference, batches(3)))


# An update interrupted at any line took place, changed nothing, or makes the step reject the next one.

_TORCHS_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


def interrupted(
    build: Callable[[], TrainStep], action: Callable[[TrainStep], Any], every: int = 1
) -> Iterator[TrainStep]:
    """Yield steps whose action was interrupted at each line, or at each n-th."""
    for stop_at in itertools.count(1, every):
        step = build()
        try:
            with Lines(stop_at, _TORCHS_OPTIMIZERS):
                action(step)
        except Stop:
            # Python does not leave a `with` that is interrupted at its end.
            while torch.is_autocast_enabled("cpu"):
                torch.set_autocast_enabled("cpu", False)
                torch.autocast_decrement_nesting()
            yield step
        else:
            return


@pytest.mark.parametrize(
    ("kind", "updates", "precision", "every"),
    [
        ("held", 1, "fp16", 12),
        ("aux, bf16", 1, "bf16", 16),
        *(
            pytest.param(*row, 1, marks=pytest.mark.slow)
            for row in (
                *(("adamw", 2, "fp32"), ("adamw", 1, "fp16"), ("momentum", 0, "fp32")),
                *(("plain adam", 1, "fp16"), ("two optimizers", 2, "fp32")),
            )
        ),
    ],
)
def test_update_interrupted_at_any_line(kind: str, updates: int, precision: str, every: int) -> None:
    """Under fp16 its gradients overflow, so it is skipped, and the loss scale is halved."""

    def build() -> TrainStep:
        step = KINDS[kind].build(precision=precision)
        train(step, data[:updates])
        return step

    data = batches(updates + 2)
    if precision == "fp16":
        data[updates] = data[updates][0], data[updates][1] * 1e4
    uninterrupted = build()
    state = uninterrupted.state_dict()
    states, results = [state_kept_by_skips(uninterrupted)], list[Any]()
    for batch in data[updates:]:
        results.append(uninterrupted(batch))
        states.append(state_kept_by_skips(uninterrupted))
    outcomes = set[str]()
    for step in interrupted(build, lambda step: step(data[updates]), every):
        is_rejected = is_refused(step)
        if is_rejected:
            step.load_state_dict(state)
        took_place = sum(step.state_dict()[count] for count in ("applied", "skipped")) > updates
        outcomes.add("rejected" if is_rejected else "took place" if took_place else "nothing changed")
        assert equal_trees(state_kept_by_skips(step), states[took_place])
        assert equal_trees(step(data[updates + took_place]), results[took_place])
    assert every > 1 or outcomes == {"took place", "nothing changed", "rejected"}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_set_peak_interrupted_at_any_line(every: int) -> None:
    def build() -> TrainStep:
        step = make_step("adamw")
        train(step, data[:3])
        return step

    data = batches(4)
    state = build().state_dict()
    for step in interrupted(build, lambda step: step.set_peak(0.25), every):
        if is_refused(step):
            step.load_state_dict(state)
        peak = step.state_dict()["optimizer"]["param_groups"][0]["initial_lr"]
        assert step(data[3]).lr.item() == torch.tensor(CURVE(3) * peak).item()
