"""Steppers: the optimizers that skip on the device, undocumented behavior of torch, changed settings."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.schedulers.runs import learning_rate
from support.training.models import Net, batches, mean_loss, nonfinite
from support.training.optimizers import FUSED, OPTIMIZERS, make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step
from support.training.trees import equal_trees

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep
from torch_bridge.training.optimizers.steppers import check_capturable, takes_found_inf
from torch_bridge.training.update.precision import Precision


def _state(optimizer: torch.optim.Optimizer) -> Any:
    state = optimizer.state_dict()["state"]
    return {
        key: {name: torch.as_tensor(value).clone() for name, value in row.items()}
        for key, row in state.items()
    }


@pytest.mark.parametrize("name", FUSED)
def test_torch_fused_optimizers_obey_found_inf(name: str) -> None:
    """Undocumented in torch: `found_inf` = 1 changes nothing, and 0 makes no difference."""
    data = batches(4)
    models = Net(), Net()
    with_it, without = (make_optimizer(name, model) for model in models)
    for batch in data:
        for model, optimizer in zip(models, (with_it, without), strict=True):
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
        with_it.found_inf = torch.tensor(0.0)
        with_it.step()
        without.step()
        assert equal_trees(models[0].state_dict(), models[1].state_dict())
        assert equal_trees(_state(with_it), _state(without))

        before = [parameter.clone() for parameter in models[0].parameters()], _state(with_it)
        for parameter in models[0].parameters():
            parameter.grad.fill_(float("nan"))
        with_it.found_inf = torch.tensor(1.0)
        with_it.step()
        del with_it.found_inf
        assert equal_trees((list(models[0].parameters()), _state(with_it)), before)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.5}, {"maximize": True}])
def test_first_momentum_equals_that_of_torch(options: dict[str, Any]) -> None:
    """From the first update on, after skipped ones too, and after the states were deleted."""
    models = model, reference = Net(), Net()
    ours, theirs = (
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, fused=True, **options)
        for net in models
    )
    step, clock = TrainStep(model, ours, mean_loss, CURVE), 0
    for number, batch in enumerate(batches(9)):
        if number == 5:
            ours.state.clear()
            theirs.state.clear()
        if number in (0, 3, 5):
            step(nonfinite(batch))
            continue
        step(batch)
        theirs.param_groups[0]["lr"] = learning_rate(float(np.float32(0.1)), CURVE, clock)
        theirs.zero_grad()
        mean_loss(reference, batch).backward()
        theirs.step()
        clock += 1
        assert equal_trees(model.state_dict(), reference.state_dict())
        assert equal_trees(_state(ours), _state(theirs))


def test_state_saved_before_the_first_momentum_loads() -> None:
    """Earlier releases created momentum in the first update: at update 0 their states have none."""
    step, resumed, unsaved = make_step("momentum"), make_step("momentum"), make_step("momentum")
    state = step.state_dict()
    state["optimizer"]["state"] = {}
    resumed.load_state_dict(state)
    for batch in [nonfinite(batches(1)[0]), *batches(4)]:
        assert equal_trees(resumed(batch), unsaved(batch))
    assert equal_trees(resumed.state_dict(), unsaved.state_dict())


def test_takes_found_inf_for_fused_optimizers() -> None:
    for name in OPTIMIZERS:
        optimizer = make_optimizer(name, Net())
        assert takes_found_inf(optimizer) == (name in FUSED)

    class Derived(torch.optim.Adam):
        pass

    derived = Derived(Net().parameters(), fused=True)
    assert not takes_found_inf(derived), "a subclass may do anything"
    first, second = Net().children().__iter__(), Net()
    mixed = torch.optim.Adam(
        [{"params": next(first).parameters(), "fused": True}, {"params": second.parameters()}]
    )
    assert not takes_found_inf(mixed)


def test_check_capturable_rejects_uncapturable_optimizers() -> None:
    for name in FUSED:
        optimizer = make_optimizer(name, Net())
        if "capturable" not in optimizer.defaults:
            check_capturable(optimizer)
            continue
        with pytest.raises(ValueError, match="capturable=True"):
            check_capturable(optimizer)
        optimizer = make_optimizer(name, Net(), capturable=True)
        check_capturable(optimizer)
    for name in OPTIMIZERS.keys() - FUSED.keys():
        optimizer = make_optimizer(name, Net())
        with pytest.raises(ValueError, match=f"fused=True; the optimizer is {type(optimizer).__name__}"):
            check_capturable(optimizer)


def _switch(optimizer: torch.optim.Optimizer, group: int, fused: bool) -> None:
    optimizer.param_groups[group]["fused"] = fused


def _groups(model: Net, count: int) -> list[dict[str, Any]]:
    if count == 1:
        return [{"params": model.parameters()}]
    return [{"params": model.first.parameters(), "lr": 0.02}, {"params": model.last.parameters()}]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", FUSED)
@examples(6)
@given(
    count=st.integers(1, 2),
    switches=st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.booleans()), min_size=8, max_size=20),
)
def test_fused_may_change_between_updates(
    name: str, precision: Any, count: int, switches: list[tuple[int, bool, bool]]
) -> None:
    """Equals a hand-written loop that omits the skipped updates."""
    kind, options = FUSED[name]
    model, stepped_model = Net(), Net()
    optimizer, stepped_optimizer = (
        kind(_groups(module, count), **options) for module in (model, stepped_model)
    )
    step = TrainStep(stepped_model, stepped_optimizer, mean_loss, CURVE, precision=precision)
    peaks = [float(np.float32(group["lr"])) for group in optimizer.param_groups]
    applied = 0
    for (group, fused, skip), batch in zip(switches, batches(len(switches)), strict=True):
        for trained in (optimizer, stepped_optimizer):
            _switch(trained, group % count, fused)
        result = step(nonfinite(batch) if skip else batch)
        expected = [CURVE(applied) * np.float32(peak) for peak in peaks]
        assert equal_trees(result.lr, torch.tensor(expected))
        if not skip:
            on_device = all(param_group["fused"] for param_group in optimizer.param_groups)
            for param_group, peak in zip(optimizer.param_groups, peaks, strict=True):
                rate = learning_rate(peak, CURVE, applied)
                param_group["lr"] = torch.tensor(rate, dtype=torch.float32) if on_device else rate
            optimizer.zero_grad()
            loss = Precision(precision, torch.device("cpu")).run(mean_loss, model, batch)
            loss.backward()
            optimizer.step()
            applied += 1
        assert result.applied == applied
        assert equal_trees(stepped_model.state_dict(), model.state_dict())
        if applied:  # a first update that a fused kernel skips leaves zeros as its state
            assert equal_trees(_state(stepped_optimizer), _state(optimizer))


def test_reads_follow_the_fused_setting() -> None:
    step, (batch,) = make_step("adamw"), batches(1)
    for fused in (True, False, True, None, True):
        step.optimizer.param_groups[0]["fused"] = fused
        step(batch)
        assert (reads_of(lambda: step(batch)) == 0) is bool(fused)
        assert reads_of(lambda: step(nonfinite(batch))) == (0 if fused else 1)


@pytest.mark.parametrize("name", ["adamw", "momentum", "nesterov", "plain momentum", "rmsprop"])
def test_frozen_parameters_may_join_later(name: str) -> None:
    """Fused SGD's kernel needs the momentum of all parameters or of none: new ones begin at zero."""
    model, reference, data = Net(), Net(), batches(8)
    step = make_step(name, model)
    kind, options = OPTIMIZERS[name]
    optimizer = kind(reference.parameters(), **options | {"fused": False} if "fused" in options else options)
    for module in (model, reference):
        module.last.weight.requires_grad_(False)
    for number, batch in enumerate(data):
        for module in (model, reference):
            module.last.weight.requires_grad_(number in (3, 4, 7))
            module.first.bias.requires_grad_(number not in (5, 6))
        skipped = number == 3
        step(nonfinite(batch) if skipped else batch)
        if not skipped:
            optimizer.param_groups[0]["lr"] = options["lr"] * float(CURVE(number - (number > 3)))
            optimizer.zero_grad()
            mean_loss(reference, batch).backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-6)


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
    """Each has its own clock, and attaches its learning rates when it is called."""
    model = Net()
    optimizer = make_optimizer(name, model)
    short = PlateauCurve(20, decay_shape="linear")
    steps = [TrainStep(model, optimizer, mean_loss, curve) for curve in (CURVE, short)]
    for applied, batch in enumerate(batches(6)):
        for step, curve in zip(steps, (CURVE, short), strict=True):
            rate = step(batch).lr.item()
            assert rate == float(curve(applied) * np.float32(OPTIMIZERS[name][1]["lr"]))
            assert float(optimizer.param_groups[0]["lr"]) == rate
