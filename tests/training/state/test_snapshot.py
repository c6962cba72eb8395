"""States of training steps: what they load into, besides the kinds of runs in `test_every_run.py`."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.clocks.held import CURVE as HELD_CURVE, PATIENT
from support.training.kinds_of_run import KINDS
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import Foreign, make_optimizer
from support.training.steps import CURVE, make_step, train
from support.training.trees import equal_trees, through_file
from torch import Tensor, nn

from torch_bridge import Checkpoints, DataClock, TrainStep, lambda_lr


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
    group = dict(loading.optimizer.param_groups[0])
    train(saved, data[:2])
    state: Any = through_file(saved.state_dict())
    state["optimizer"]["param_groups"][0]["capturable"] = True  # torch runs it only on a GPU
    loading.load_state_dict(state)
    for option in {"fused", "foreach", "capturable"} & group.keys():
        assert loading.optimizer.param_groups[0][option] == group[option]
    torch.testing.assert_close(train(loading, data[2:]), train(saved, data[2:]), rtol=1e-5, atol=1e-5)


# A run changes from a `TrainStep` to a loop with a scheduler, or back, as docs/training_step.md says.

_DATA = batches(16)
_CLOCKS: dict[str, tuple[Any, Any]] = {
    "updates": (CURVE, None),
    "samples": (CURVE, DataClock(3, count=4)),
    "held": (HELD_CURVE, PATIENT),
}


def _train(model: Any, optimizer: Any, driver: Any, data: Any) -> None:
    for batch in data:
        if isinstance(driver, TrainStep):
            driver(batch)
            continue
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        driver.step(loss.detach()) if driver.state_dict()["hold"] else driver.step()


@pytest.mark.parametrize("clock", _CLOCKS)
@pytest.mark.parametrize("name", ["adamw", "foreach adamw", "plain momentum"])
@pytest.mark.parametrize("to_step", [False, True])
def test_run_continues_in_the_other_loop(clock: str, name: str, to_step: bool) -> None:
    curve, moved_by = _CLOCKS[clock]

    def build(is_step: bool, loaded: Any = None, **more: Any) -> list[Any]:
        model = Net()
        optimizer = make_optimizer(name, model, **({"lr": torch.tensor(0.01)} if name == "adamw" else {}))
        for part, state in zip((model, optimizer), copy.deepcopy(loaded or ()), strict=False):
            part.load_state_dict(state)
        if is_step:
            step = make_step(model=model, optimizer=optimizer, curve=curve, clock=moved_by, **more)
            return [model, optimizer, step]
        return [model, optimizer, lambda_lr(optimizer, curve, clock=moved_by, **more)]

    uninterrupted, first = build(to_step), build(not to_step)
    _train(*uninterrupted, _DATA)
    _train(*first, _DATA[:9])
    *states, saved = (part.state_dict() for part in first)
    if not to_step:
        states = saved["model"], saved["optimizer"]
    with pytest.raises(ValueError, match=r"it is the state of a (scheduler|TrainStep)\."):
        build(to_step)[2].load_state_dict(saved)
    if clock == "updates" and to_step:
        resumed = build(True, states, initial_updates=saved["last_epoch"])
    elif clock == "updates":
        resumed = build(False, states, last_epoch=saved["applied"] - 1)
    else:
        resumed = build(to_step, states)
        entries = {entry: saved[entry] for entry in ("curve_step", "consumed", "hold", "records")}
        entries |= {"applied": saved["last_epoch"]} if to_step else {"last_epoch": saved["applied"]}
        resumed[2].load_state_dict(resumed[2].state_dict() | entries)
    _train(*resumed, _DATA[9:])
    assert equal_trees(resumed[0].state_dict(), uninterrupted[0].state_dict())
