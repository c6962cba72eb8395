"""Optimizers: which are taken, and what torch does not document about those that skip on the device."""

import inspect
from typing import Any

import pytest
import torch
from support.training import CURVE, FUSED, OPTIMIZERS, Net, batches, mean_loss, optimizer_of, same
from torch import nn

from torch_bridge import lambda_lr
from torch_bridge.training.drivers import _has_momentum, check_capturable, takes_found_inf
from torch_bridge.training.optimizers import check_model, device_of, optimizers_of

_ALL = {
    kind
    for kind in vars(torch.optim).values()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


def _state(optimizer: torch.optim.Optimizer) -> Any:
    state = optimizer.state_dict()["state"]
    return {
        key: {name: torch.as_tensor(value).clone() for name, value in row.items()}
        for key, row in state.items()
    }


@pytest.mark.parametrize("name", FUSED)
def test_torch_fused_optimizers_obey_found_inf(name: str) -> None:
    """Not documented by torch: with the attribute at 1 nothing changes, at 0 it makes no difference."""
    data = batches(4)
    models = Net(), Net()
    with_it, without = (optimizer_of(name, model) for model in models)
    for batch in data:
        for model, optimizer in zip(models, (with_it, without), strict=True):
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
        with_it.found_inf = torch.tensor(0.0)
        with_it.step()
        without.step()
        assert same(models[0].state_dict(), models[1].state_dict())
        assert same(_state(with_it), _state(without))

        before = [parameter.clone() for parameter in models[0].parameters()], _state(with_it)
        for parameter in models[0].parameters():
            parameter.grad.fill_(float("nan"))
        with_it.found_inf = torch.tensor(1.0)
        with_it.step()
        del with_it.found_inf
        assert same((list(models[0].parameters()), _state(with_it)), before)


def test_torch_fused_momentum_is_not_to_be_skipped_at_first() -> None:
    """Why `_has_momentum` is asked: torch makes the buffer and, when skipping, leaves it as it came."""
    model = Net()
    optimizer = optimizer_of("momentum", model)
    (batch,) = batches(1)
    assert _has_momentum(optimizer), "no gradient, so nothing to wait for"
    mean_loss(model, batch).backward()
    assert not _has_momentum(optimizer)
    optimizer.step()
    assert _has_momentum(optimizer)
    assert all(_has_momentum(optimizer_of(name, model)) for name in ("adamw", "adagrad", "sgd"))


def test_a_parameter_that_joins_later_has_no_momentum_yet() -> None:
    model = Net()
    optimizer = optimizer_of("momentum", model)
    model.last.weight.requires_grad_(False)
    mean_loss(model, batches(1)[0]).backward()
    optimizer.step()
    assert _has_momentum(optimizer)
    model.last.weight.requires_grad_(True)
    mean_loss(model, batches(1)[0]).backward()
    assert not _has_momentum(optimizer)


def test_which_skip_on_the_device() -> None:
    for name in OPTIMIZERS:
        optimizer = optimizer_of(name, Net())
        assert takes_found_inf(optimizer, optimizer.param_groups) == (name in FUSED)

    class Own(torch.optim.Adam):
        pass

    own = Own(Net().parameters(), fused=True)
    assert not takes_found_inf(own, own.param_groups), "a subclass may do anything"
    first, second = Net().children().__iter__(), Net()
    mixed = torch.optim.Adam(
        [{"params": next(first).parameters(), "fused": True}, {"params": second.parameters()}]
    )
    assert not takes_found_inf(mixed, mixed.param_groups)


@pytest.mark.parametrize("kind", sorted(_ALL, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_optimizer_of_torch_is_taken_or_refused_by_name(kind: Any) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        with pytest.raises(TypeError, match="LBFGS needs a closure"):
            optimizers_of(model, optimizer)
    else:
        assert optimizers_of(model, optimizer) == [optimizer]
        assert device_of([optimizer]) == torch.device("cpu")


def test_an_own_optimizer_that_needs_a_closure() -> None:
    class LineSearch(torch.optim.Optimizer):
        def step(self, closure: Any) -> None:
            closure()

    model = Net()
    with pytest.raises(TypeError, match="LineSearch needs a closure"):
        optimizers_of(model, LineSearch(model.parameters(), {"lr": 0.1}))


def test_what_is_refused() -> None:
    model = Net()
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        check_model(mean_loss)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        optimizers_of(model, "adamw")
    with pytest.raises(ValueError, match="4 of the optimizer's 4 parameters are not the model's"):
        optimizers_of(model, optimizer_of("adamw", Net()))
    more = [*model.parameters(), nn.Parameter(torch.ones(1))]
    with pytest.raises(ValueError, match="1 of the optimizer's 5 parameters are not the model's"):
        optimizers_of(model, torch.optim.SGD(more))


@pytest.mark.parametrize(
    "attach",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10),
    ],
)
def test_a_scheduler_is_a_second_clock(attach: Any) -> None:
    model = Net()
    optimizer = optimizer_of("adamw", model)
    attach(optimizer)
    with pytest.raises(ValueError, match="scheduler is attached"):
        optimizers_of(model, optimizer)


def test_a_scheduler_of_this_project_is_one_too() -> None:
    model = Net()
    optimizer = optimizer_of("sgd", model)
    lambda_lr(optimizer, CURVE)
    with pytest.raises(ValueError, match="scheduler is attached"):
        optimizers_of(model, optimizer)


def test_what_a_graph_can_hold() -> None:
    for name in FUSED:
        optimizer = optimizer_of(name, Net())
        if "capturable" not in optimizer.defaults:
            check_capturable(optimizer, optimizer.param_groups)
            continue
        with pytest.raises(ValueError, match="capturable=True"):
            check_capturable(optimizer, optimizer.param_groups)
        optimizer = optimizer_of(name, Net(), capturable=True)
        check_capturable(optimizer, optimizer.param_groups)
    for name in OPTIMIZERS.keys() - FUSED.keys():
        optimizer = optimizer_of(name, Net())
        with pytest.raises(ValueError, match=f"fused=True; the optimizer is {type(optimizer).__name__}"):
            check_capturable(optimizer, optimizer.param_groups)
