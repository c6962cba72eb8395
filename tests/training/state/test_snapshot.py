"""States of training steps: what they load into, besides the kinds of runs in `test_every_run.py`."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training.kinds_of_run import KINDS
from support.training.models import Net, batches
from support.training.optimizers import OPTIMIZERS, Foreign, make_optimizer
from support.training.steps import make_step, train
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn

from torch_bridge import Checkpoints


def _square_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("name", ["adamw", "momentum", "plain adam", "rmsprop"])
def test_empty_optimizer_state_is_ignored(name: str) -> None:
    """`optimizer.state[parameter]` creates an empty one for a parameter that never had a gradient."""
    model, (batch,) = Net(), batches(1)
    model.last.bias.requires_grad_(False)
    step = make_step(name, model)
    step(batch)
    assert step.optimizer.state[model.last.bias] == {}
    step.load_state_dict(step.state_dict())
    model.last.bias.requires_grad_(True)
    assert step(batch).applied == 2


@pytest.mark.parametrize("name", ["adamw", "momentum", "adagrad", "plain adam"])
@pytest.mark.parametrize("separately", [False, True])
def test_state_loads_into_other_memory_format(name: str, separately: bool, tmp_path: Path) -> None:
    """As the state of a step, or of a model and its optimizer."""
    strided = nn.Conv2d(3, 4, 3)
    plain, data = copy.deepcopy(strided), torch.randn(8, 2, 3, 5, 5)
    strided.to(memory_format=torch.channels_last)
    step, optimizer = make_step(name, strided, _square_loss), make_optimizer(name, plain)
    train(step, data[:4])
    if separately:
        Checkpoints(tmp_path).save(4, model=strided, optimizer=step.optimizer)
        Checkpoints(tmp_path).load(model=plain, optimizer=optimizer)
    other = make_step(model=plain, optimizer=optimizer, loss_fn=_square_loss, initial_updates=4)
    if not separately:
        other.load_state_dict(step.state_dict())
    assert equal_trees(other.state_dict(), step.state_dict())
    train(step, data[4:])
    train(other, data[4:])
    torch.testing.assert_close(plain.weight, strided.weight.contiguous(), rtol=1e-5, atol=1e-6)


def test_optimizer_of_other_library_keeps_memory_layout() -> None:
    """A tensor may have the parameter's shape by chance."""
    models = nn.Linear(3, 3), nn.Linear(3, 3)
    step, resumed = (
        make_step(model=model, optimizer=Foreign(model.parameters()), loss_fn=_square_loss)
        for model in models
    )
    step(torch.ones(2, 3))
    state: Any = step.optimizer.state[models[0].weight]
    state["moment"] = state["moment"].T
    resumed.load_state_dict(step.state_dict())
    assert resumed.optimizer.state[models[1].weight]["moment"].stride() == (1, 3)
    assert equal_trees(resumed.state_dict(), step.state_dict())


# Options of the groups.


def test_option_that_the_state_lacks_keeps_its_value() -> None:
    model = Net()
    groups = [{"params": model.parameters(), "depth": 3}]
    step = make_step(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01, fused=True))
    step.load_state_dict(make_step().state_dict())
    assert step.optimizer.param_groups[0]["depth"] == 3


def test_groups_of_foreign_optimizer_may_have_other_options() -> None:
    """The state has exactly the saved ones, and those of a later version their values here."""
    step, resumed, uninterrupted = (KINDS["foreign"].build() for _ in range(3))
    first, data = step.state_dict(), batches(6)
    results = train(uninterrupted, data)
    train(step, data[:3])
    state: Any = through_file(step.state_dict())
    del state["optimizer"]["param_groups"][0]["decay"]
    resumed.load_state_dict(state)
    assert equal_trees(train(resumed, data[3:]), results[3:])
    assert equal_trees(resumed.state_dict(), uninterrupted.state_dict())
    resumed.load_state_dict(first)
    assert "updates" not in resumed.optimizer.param_groups[0]
    assert equal_trees(resumed.state_dict(), first)


@pytest.mark.parametrize(
    ("name", "other"),
    [("adamw", {"fused": None}), ("adamw", {"fused": None, "foreach": True}), ("momentum", {"fused": None})],
)
@pytest.mark.parametrize("from_fused", [True, False])
def test_implementation_options_stay_the_optimizers(
    name: str, other: dict[str, Any], from_fused: bool
) -> None:
    """A state of a fused optimizer loads into a step with another implementation, and vice versa."""
    options = [{}, other] if from_fused else [other, {}]
    models, data = [Net(), Net()], batches(4)
    saved, loading = (
        make_step(model=model, optimizer=make_optimizer(name, model, **more))
        for model, more in zip(models, options, strict=True)
    )
    train(saved, data[:2])
    loading.load_state_dict(through_file(saved.state_dict()))
    for option in ("fused", "foreach"):
        assert loading.optimizer.param_groups[0][option] == (OPTIMIZERS[name][1] | options[1]).get(option)
    torch.testing.assert_close(train(loading, data[2:]), train(saved, data[2:]), rtol=1e-5, atol=1e-5)


def test_state_of_capturable_optimizer_loads() -> None:
    """torch runs it only on a GPU; here the optimizer stays as it was built."""
    step, other, (batch,) = make_step("plain adam"), make_step("plain adam"), batches(1)
    step(batch)
    state: Any = step.state_dict()
    state["optimizer"]["param_groups"][0].update(capturable=True, foreach=True)
    other.load_state_dict(state)
    assert not other.optimizer.param_groups[0]["capturable"]
    assert equal_trees(other(batch), step(batch))
