"""A training step refuses invalid input with one clear error, and changes nothing."""

import copy
import dataclasses
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.training.models import Net, batches, mean_loss, pair_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step, state_kept_by_skips, train
from support.training.trees import equal_trees
from torch import nn

from plateau_jax import HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep
from torch_bridge.training.arguments import TrainStepArguments

_HOLD = HoldUntilFlat(3, limit=9)


def _saved(value: Any) -> None:
    torch.save(value, io.BytesIO())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "tf32"}, ValueError, "precision = 'tf32'"),
        ({"on_nonfinite": "stop"}, ValueError, "on_nonfinite = 'stop'"),
        ({"max_norm": 0}, ValueError, "max_norm = 0"),
        ({"max_norm": float("nan")}, ValueError, "max_norm = nan"),
        ({"max_norm": True}, TypeError, "max_norm = True"),
        ({"loss_fn": None}, TypeError, "loss_fn = None must be callable"),
        pytest.param({"curve": lambda step: 0.1}, TypeError, "must be a Curve", id="a function"),
        ({"curve": [CURVE, CURVE]}, ValueError, "2 curves; the optimizer has 1"),
        ({"carry": 3}, TypeError, "carry = 3"),
        ({"initial_updates": -1}, ValueError, "initial_updates"),
        ({"initial_updates": 1.5}, TypeError, "initial_updates"),
        ({"initial_updates": 2**63 - 1}, ValueError, r"initial_updates = .* at most 2\*\*62"),
        ({"hold": "wait"}, TypeError, "hold = 'wait' must be"),
        ({"hold": []}, ValueError, "no rule"),
        ({"hold": _HOLD, "curve": PlateauCurve(30)}, ValueError, "needs a flat part"),
        ({"hold": _HOLD, "unit": 3, "count": len}, ValueError, "unit = 3 with hold"),
        ({"count": len}, TypeError, "needs unit="),
        ({"unit": 3}, TypeError, "needs count="),
        ({"unit": 3, "count": 4}, TypeError, "needs count="),
        ({"unit": 0, "count": len}, ValueError, "unit = 0 must lie in"),
        ({"unit": 2.0, "count": len}, TypeError, "unit = 2.0 must be an integer"),
        ({"unit": 2**62 + 1, "count": len}, ValueError, r"2\*\*62"),
        ({"unit": 3, "count": len, "initial_updates": 4}, ValueError, "with initial_updates = 4"),
        ({"cuda_graph": True}, ValueError, "cuda_graph=True .* CUDA"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    model = Net()
    optimizer = make_optimizer("adamw", model)
    group = dict(optimizer.param_groups[0])
    arguments = {"loss_fn": mean_loss, "curve": CURVE} | options
    with pytest.raises(error, match=message):
        TrainStep(model, optimizer, arguments.pop("loss_fn"), arguments.pop("curve"), **arguments)
    assert optimizer.param_groups[0] == group, "nothing was done to the optimizer"


def test_peak_outside_float32_is_refused() -> None:
    for rate in (1e-39, 1e39):
        model = Net()
        with pytest.raises(ValueError, match="learning rate"):
            TrainStep(model, make_optimizer("adamw", model, lr=rate), mean_loss, CURVE)


def test_fp16_parameters_under_fp16_are_refused() -> None:
    model = Net().half()
    with pytest.raises(ValueError, match="fp16"):
        TrainStep(model, make_optimizer("adamw", model), mean_loss, CURVE, precision="fp16")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (lambda loss: None, TypeError),
        (lambda loss: loss.expand(3), ValueError),
        (lambda loss: (loss, -1), ValueError),
        (lambda loss: loss.detach(), ValueError),
        (lambda loss: {}["missing"], KeyError),
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_refused_loss_changes_nothing(value: Any, error: type[Exception], pieces: int) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        loss = mean_loss(model, batch)
        return value(loss) if bad and batch is data[-1] else loss

    bad, data = False, batches(pieces)
    step, reference = make_step(loss_fn=loss_fn), make_step()
    step(*data)
    reference(*data)
    before, bad = state_kept_by_skips(step), True
    for _ in range(3):
        with pytest.raises(error):
            step(*data)
    assert equal_trees(state_kept_by_skips(step), before)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    bad = False
    assert equal_trees(step(*data), reference(*data))


def test_zero_total_weight_is_refused() -> None:
    (batch,) = batches(1)
    empty = batch[0][:0], batch[1][:0]
    step = make_step(loss_fn=pair_loss)
    before = state_kept_by_skips(step)
    for pieces in ((empty,), (empty, empty, empty)):
        with pytest.raises(ValueError, match=r"weight .* is zero"):
            step(*pieces)
    assert equal_trees(state_kept_by_skips(step), before)


def test_missing_batch_is_refused() -> None:
    with pytest.raises(TypeError, match="batch"):
        make_step()()


def test_numpy_numbers_are_accepted() -> None:
    data = batches(5)
    for norm in (np.float32(0.25), np.float64(0.25)):
        step, plain = make_step(max_norm=norm), make_step(max_norm=0.25)
        assert equal_trees(train(step, data), train(plain, data))


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda optimizer, more: optimizer.param_groups[0]["params"].append(more), "other parameters"),
        (lambda optimizer, more: optimizer.param_groups[0]["params"].pop(), "other parameters"),
        (lambda optimizer, more: optimizer.param_groups[0].update(params=[more]), "other parameters"),
        (lambda optimizer, more: optimizer.add_param_group({"params": more}), "has 2 parameter groups"),
    ],
    ids=["a parameter more", "a parameter less", "another list", "a group more"],
)
def test_changed_parameters_are_refused(name: str, change: Any, message: str) -> None:
    step, (batch,) = make_step(name), batches(1)
    step(batch)
    before, params = state_kept_by_skips(step), list(step.optimizer.param_groups[0]["params"])
    change(step.optimizer, nn.Parameter(torch.ones(1)))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{message}.* the step was built for"):
            step(batch)
    del step.optimizer.param_groups[1:]
    step.optimizer.param_groups[0]["params"] = params
    assert equal_trees(state_kept_by_skips(step), before)
    assert step(batch).applied == 2


def test_signature_shows_the_arguments() -> None:
    fields = [field.name for field in dataclasses.fields(TrainStepArguments) if field.init]
    shown = inspect.signature(TrainStep).parameters
    assert list(shown) == fields
    positional = [
        name for name, parameter in shown.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert positional == ["model", "optimizer", "loss_fn", "curve"]
    assert {parameter.kind for parameter in list(shown.values())[4:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert shown["precision"].default == "fp32"
    with pytest.raises(TypeError, match=r"TrainStep.__init__\(\) got an unexpected .* 'applied'"):
        make_step(applied=3)


def test_loss_without_gradient_is_refused() -> None:
    (batch,) = batches(1)
    for loss_fn in (mean_loss, pair_loss):
        step, reference = make_step(loss_fn=loss_fn), make_step(loss_fn=loss_fn)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode(), pytest.raises(ValueError, match="the loss has no gradient with respect to any"):
                step(batch)
        assert equal_trees(step(batch), reference(batch))


def test_untrainable_model_is_refused() -> None:
    with torch.inference_mode():
        model = Net()
    with pytest.raises(ValueError, match=r"made under torch\.inference_mode\(\)"):
        make_step(model=model)


def test_uninitialized_lazy_model_is_refused() -> None:
    lazy = nn.Sequential(nn.LazyLinear(2))
    optimizer = torch.optim.AdamW(lazy.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="dummy batch"):
        TrainStep(lazy, optimizer, mean_loss, CURVE)
    assert "initial_lr" not in optimizer.param_groups[0]
    (batch,) = batches(1)
    lazy(batch[0])
    assert make_step(model=lazy)(batch).applied == 1


@pytest.mark.parametrize("name", ["adamw", "plain adam"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, _saved])
def test_copying_a_step_is_refused(name: str, copied: Callable[[Any], Any]) -> None:
    step, reference = make_step(name), make_step(name)
    for holder in (step, [step], {"step": step}):
        if copied is copy.copy and holder is not step:
            continue
        with pytest.raises(TypeError, match="can't be copied or pickled: build another one"):
            copied(holder)
    (batch,) = batches(1)
    assert equal_trees(step(batch), reference(batch))
