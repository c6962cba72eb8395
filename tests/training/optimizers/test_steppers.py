"""Who steps an optimizer, and when: kernels that skip on the device, changed settings, momentum."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import learning_rate
from support.training.models import Batch, Net, batches, mean_loss, nonfinite
from support.training.optimizers import FUSED, OPTIMIZERS, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees
from torch.optim import SGD, Adam, Optimizer

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, follow


def _state(optimizer: Optimizer) -> Any:
    """Return copies of an optimizer's states, with tensors for the counts that are numbers."""
    return {
        key: {name: torch.as_tensor(value).clone() for name, value in state.items()}
        for key, state in optimizer.state_dict()["state"].items()
    }


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_of_torch_obey_found_inf(name: str) -> None:
    """Undocumented in torch: `found_inf` = 1 changes nothing, and 0 makes no difference."""
    model, reference = Net(), Net()
    with_it, without = make_optimizer(name, model), make_optimizer(name, reference)
    for batch in batches(3):
        for net in (model, reference):
            net.zero_grad()
            mean_loss(net, batch).backward()
        with_it.found_inf = torch.tensor(0.0)
        with_it.step()
        without.step()
        for parameter in model.parameters():
            parameter.grad.fill_(float("nan"))
        with_it.found_inf = torch.tensor(1.0)
        with_it.step()
        del with_it.found_inf
        assert equal_trees(model.state_dict(), reference.state_dict())
        assert equal_trees(_state(with_it), _state(without))


class Pair:
    """A training step, and the loop by hand that it must equal, with the same kind of optimizer."""

    def __init__(self, kind: Any, groups: int = 1, **options: Any) -> None:
        models = Net(), Net()
        self.optimizers = [kind(self._groups(model, groups), **options) for model in models]
        self.step = TrainStep(models[0], self.optimizers[0], mean_loss, CURVE)
        self.models, self.applied = models, 0
        self.peaks = [group["initial_lr"] for group in self.optimizers[0].param_groups]

    @staticmethod
    def _groups(model: Net, count: int) -> Any:
        if count == 1:
            return model.parameters()
        return [{"params": model.first.parameters(), "lr": 0.02}, {"params": model.last.parameters()}]

    def update(self, batch: Batch, is_bad: bool = False) -> None:
        """Train both, and compare learning rates; only the step trains if the batch is bad."""
        model, optimizer = self.models[1], self.optimizers[1]
        result = self.step(nonfinite(batch) if is_bad else batch)
        lrs = [learning_rate(peak, CURVE, self.applied) for peak in self.peaks]
        assert result.lr.tolist() == lrs
        if not is_bad:
            is_fused = all(group.get("fused") for group in optimizer.param_groups)
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = torch.tensor(lr) if is_fused else lr
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
            optimizer.step()
            self.applied += 1
        assert result.applied == self.applied

    def check_equal(self, *, states: bool) -> None:
        """Compare weights, and states unless a skipped update may have created some, as zeros."""
        assert equal_trees(*(model.state_dict() for model in self.models))
        if states:
            assert equal_trees(*map(_state, self.optimizers))


MOMENTUM = {"lr": 0.1, "fused": True, "momentum": 0.9, "weight_decay": 0.01}
CHANGED = FUSED | {
    "dampened": (SGD, {**MOMENTUM, "dampening": 0.5}),
    "maximized": (SGD, {**MOMENTUM, "maximize": True}),
}


@pytest.mark.parametrize("name", CHANGED)
@examples(8)
@given(
    st.integers(1, 2),
    st.lists(
        st.tuples(st.sampled_from([False, True, True, "clear"]), st.integers(0, 1), st.booleans()),
        min_size=8,
        max_size=12,
    ),
)
def test_changes_between_updates_take_effect(name: str, groups: int, changes: list[Any]) -> None:
    """A changed `fused`, deleted states, and bad updates: the first momentum may come after any of them."""
    kind, options = CHANGED[name]
    pair = Pair(kind, groups, **options)
    for (change, group, is_bad), batch in zip(changes, batches(len(changes)), strict=True):
        for optimizer in pair.optimizers:
            if change == "clear":
                optimizer.state.clear()
            else:
                optimizer.param_groups[group % groups]["fused"] = change
        pair.update(batch, is_bad)
        pair.check_equal(states=not is_bad)


@pytest.mark.parametrize("name", ["adamw", "momentum", "nesterov", "plain momentum", "rmsprop"])
def test_frozen_parameters_may_join_later(name: str) -> None:
    """Fused SGD's kernel needs the momentum of all parameters or of none: new ones begin at zero."""
    kind, options = OPTIMIZERS[name]
    pair = Pair(kind, **options)
    if "fused" in options:
        pair.optimizers[1].param_groups[0]["fused"] = False
    for number, batch in enumerate(batches(8)):
        for model in pair.models:
            model.last.weight.requires_grad_(number in (3, 4, 7))
            model.first.bias.requires_grad_(number not in (5, 6))
        pair.update(batch, is_bad=number == 3)
        states = [model.state_dict() for model in pair.models]
        torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


def test_state_saved_before_the_first_momentum_loads() -> None:
    """Earlier releases created momentum in the first update: at update 0 their states have none."""
    step, resumed = make_step("momentum"), make_step("momentum")
    state: Any = step.state_dict()
    state["optimizer"]["state"] = {}
    resumed.load_state_dict(state)
    data = [nonfinite(batches(1)[0]), *batches(4)]
    assert equal_trees(train(resumed, data), train(step, data))
    assert equal_trees(resumed.state_dict(), step.state_dict())


def test_reads_follow_the_fused_setting() -> None:
    step, (batch,) = make_step("adamw"), batches(1)
    for fused in (True, False, True, None, True):
        step.optimizer.param_groups[0]["fused"] = fused
        step(batch)
        assert (reads_of(lambda: step(batch)) == 0) is bool(fused)
        assert reads_of(lambda: step(nonfinite(batch))) == (0 if fused else 1)


class _Derived(Adam):
    """A subclass may do anything, so the host steps it."""


def _partly_fused(parameters: Any, fused: bool) -> Optimizer:
    first, *rest = parameters
    return Adam([{"params": first, "fused": True}, {"params": rest}])


def _fused(parameters: Any, kind: Any = Adam) -> Optimizer:
    return kind(parameters, fused=True)


def _momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize(
    ("first", "last", "reads"),
    [
        (_fused, _momentum, 0),
        (_fused, torch.optim.RMSprop, 1),
        (_momentum, Adam, 1),
        (torch.optim.RMSprop, torch.optim.NAdam, 1),
        (lambda parameters: _fused(parameters, _Derived), _fused, 1),
        (lambda parameters: _fused(parameters, _partly_fused), _fused, 1),
    ],
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
    for skipped in (1, 2):
        torch.nn.init.zeros_(model.last.bias)
        before = [parameter.clone() for parameter in model.parameters()], list(map(_state, optimizers))
        result = None

        def bad_update() -> None:
            nonlocal result
            result = step((*batch, 1.0))

        assert reads_of(bad_update) == reads
        assert result.loss.isfinite()
        assert (result.applied, result.skipped) == (skipped - 1, skipped)
        assert equal_trees(list(model.parameters()), before[0])
        assert skipped == 1 or equal_trees(list(map(_state, optimizers)), before[1])
        step((*batch, 0.0))


LINEAR = PlateauCurve(30, decay_shape="linear")


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (CURVE, [CURVE] * 3),
        ([CURVE, LINEAR], [CURVE, LINEAR, LINEAR]),
        ([LINEAR, [CURVE, LINEAR]], [LINEAR, CURVE, LINEAR]),
        (([CURVE], (LINEAR, CURVE)), [CURVE, LINEAR, CURVE]),
    ],
    ids=["one for all", "an optimizer", "a group", "tuples"],
)
def test_curves_are_assigned_to_groups(curve: Any, expected: list[PlateauCurve]) -> None:
    model = Net()
    groups = [{"params": model.first.bias, "lr": 0.03}, {"params": model.last.bias}]
    optimizers = [make_optimizer("muon", model), torch.optim.AdamW(groups, lr=0.02, fused=True)]
    step = make_step(model=model, optimizer=optimizers, curve=curve)
    for applied, batch in enumerate(batches(3)):
        pairs = zip(expected, (0.01, 0.03, 0.02), strict=True)
        lrs = [learning_rate(peak, curve_of_group, applied) for curve_of_group, peak in pairs]
        assert step(batch).lr.tolist() == lrs
        assert [float(group["lr"]) for each in optimizers for group in each.param_groups] == lrs


@pytest.mark.parametrize("sequence", [list, tuple])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_sequence_of_one_equals_single_optimizer(kind: Any, sequence: Any) -> None:
    def build(wrap: Any) -> TrainStep:
        model = Net()
        groups = [{"params": part.parameters()} for part in (model.first, model.last)]
        return make_step(model=model, optimizer=wrap(kind(groups, lr=0.01)), curve=wrap([CURVE, LINEAR]))

    one, listed = build(lambda value: value), build(lambda value: sequence([value]))
    assert equal_trees(train(one, batches(3)), train(listed, batches(3)))
    assert equal_trees(one.state_dict(), listed.state_dict())
    assert listed.optimizer is listed.optimizers[0]
    listed.load_state_dict(one.state_dict())
    one.load_state_dict(listed.state_dict())


@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop"])
def test_assigned_lr_is_overwritten_by_the_curve(name: str) -> None:
    step, reference = make_step(name), make_step(name)
    for number, batch in enumerate(batches(9)):
        group = step.optimizer.param_groups[0]
        group["lr"] = (0.7, torch.tensor(0.7), group["lr"])[number % 3]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(0.9)
        assert equal_trees(step(batch), reference(batch))
    assert equal_trees(step.state_dict(), reference.state_dict())


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
