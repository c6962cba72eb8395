"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.curves.descriptions import OF_UNIT_8
from support.errors import check_error, each, each_row
from support.training.models import Net, Recurrent, batches, carried_loss, counting_loss, mean_loss, pair_loss
from support.training.optimizers import SharpnessAware, make_optimizer
from support.training.steps import CURVE, equal_trees, make_step, state_kept_by_skips
from torch import nn
from torch.optim import LBFGS, SGD, AdamW

from plateau_jax import DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep, evaluate, find_batch_size

HOLD, LINEAR = HoldUntilFlat(3, limit=9), PlateauCurve(30, decay_shape="linear")
NUMBERS, NAN = list(range(10_000)), float("nan")


class LineSearch(torch.optim.Optimizer):
    def step(self, closure: Any) -> None:
        closure()


def inference_net() -> Net:
    with torch.inference_mode():
        return Net()


def update_with_aux(change: Callable[[Any], Any]) -> None:
    make_step(loss_fn=lambda model, batch: change(mean_loss(model, batch)), has_aux=True)(*batches(1))


def update_with_carry(change: Callable[[Any, Any], Any]) -> None:
    def loss_fn(model: nn.Module, batch: Any, carry: Any) -> Any:
        return change(*carried_loss(model, batch, carry))

    make_step(model=Recurrent(), loss_fn=loss_fn, carry=Recurrent().initial())(*batches(1, time=3))


CARRIES: list[Callable[[Any, Any], Any]] = [
    lambda loss, carry: (loss, (carry[0][:, :2], carry[1])),
    lambda loss, carry: (loss, (carry[0][None], carry[1])),
    lambda loss, carry: (loss, [*carry]),
    lambda loss, carry: (loss, (carry[0], 1.0)),
    lambda loss, carry: (loss, (carry[0], carry[1].to("meta"))),
]
ERRORS: list[Any] = [
    (lambda build: build(precision="tf32"), ValueError, "precision = 'tf32'", "fp32"),
    (lambda build: build(loss_fn=None), TypeError, "loss_fn = None", "callable"),
    (lambda build: build(on_nonfinite="stop"), ValueError, "on_nonfinite = 'stop'", "skip"),
    *each(lambda build, value: build(max_norm=value), [0, NAN], ValueError, "max_norm = {}"),
    (lambda build: build(max_norm=True), TypeError, "max_norm = True", "number"),
    (lambda build: build(curve=lambda step: 0.1), TypeError, "curve = <function", "must be a Curve"),
    (lambda build: build(curve=[CURVE, CURVE]), ValueError, "curve has 2", "parameter groups is 1"),
    (lambda build: build(clock="wait"), TypeError, "clock = 'wait'", "HoldUntilFlat"),
    (lambda build: build(clock=[HOLD, DataClock(3)]), TypeError, "clock = [Hold", "a list of such rules"),
    (lambda build: build(initial_updates=-1), ValueError, "initial_updates = -1", "lie in 0 …"),
    (lambda build: build(initial_updates=1.5), TypeError, "initial_updates = 1.5", "integer"),
    (lambda build: build(initial_updates=2**63 - 1), ValueError, f"initial_updates = {2**63 - 1}",
     "2**62"),
    (lambda build: build(clock=DataClock(3), initial_updates=4), ValueError, "updates = 4",
     "DataClock(3, count=n)"),
    *each(lambda build, value: build(**value), [{"unit": 3}, {"count": len}, {"hold": HOLD}, {"applied": 3}],
          TypeError, "unexpected keyword argument"),
    *(row for unit in (1, 16)
      for row in each(lambda build, value, unit=unit: build(curve=value, clock=DataClock(unit)), OF_UNIT_8,
                      ValueError, "must be DataClock(8)")),
    (lambda build: build(cuda_graph=True), ValueError, "cuda_graph=True", "CUDA"),
    *each(lambda build, value: build(carry=value),
          [(), [], {}, 3, 1.0, (torch.zeros(1), 2), "state", (None,)], TypeError, "carry"),
    # Optimizers, and their learning rates.
    (lambda build: build(optimizer="adamw"), TypeError, "optimizer = 'adamw'",
     "must be a torch.optim.Optimizer"),
    (lambda build, model: build(optimizer=SGD([*model.parameters(), nn.Parameter(torch.ones(1))])),
     ValueError,
     "1 of the optimizer's 5 parameters are not the model's"),
    (lambda build, model: build(optimizer=LineSearch(model.parameters(), {"lr": 0.1})), TypeError,
     "LineSearch needs"),
    (lambda build, first, model: build(optimizer=[first, LBFGS(model.last.parameters())]), TypeError,
     "LBFGS needs a closure"),
    (lambda build, model: build(optimizer=SharpnessAware(model.parameters(), SGD, lr=0.1)), TypeError,
     "SharpnessAware updates in first_step() and second_step()", "lambda_lr in a loop"),
    (lambda build, optimizer, first: build(optimizer=[optimizer, first]), ValueError, "2 parameters",
     "several optimizers"),
    (lambda build, first: build(optimizer=[first, None]), TypeError, "None",
     "must be a torch.optim.Optimizer"),
    *each(lambda build, model, value: build(optimizer=make_optimizer("adamw", model, lr=value)),
          [1e-39, 1e39], ValueError, "learning rate", "{}"),
    # The curves of several optimizers.
    *each(lambda build, first, last, value: build(optimizer=[first, last], curve=[CURVE] * value), [1, 3],
          ValueError, "{} entries for 2 optimizers"),
    (lambda build, first, last: build(optimizer=[first, last], curve=[CURVE, [CURVE, CURVE]]), ValueError,
     "curve has 2", "parameter groups is 1"),
    (lambda build, first, last: build(optimizer=[first, last], curve=[CURVE, 0.1]), TypeError, "0.1",
     "must be a Curve"),
    (lambda build, first, last: build(optimizer=[first, last], curve=[CURVE, LINEAR], clock=HOLD), ValueError,
     "the same curve"),
    # Models that cannot be trained.
    (lambda build: build(model=Net().half(), precision="fp16"), ValueError, "fp16"),
    (lambda build: build(model=inference_net()), ValueError,
     "made under torch.inference_mode()"),
    (lambda build: build(model=nn.Sequential(nn.LazyLinear(2))), ValueError,
     "dummy batch"),
    # The results of a loss function with aux or a carry; `update/test_loss` has the losses.
    *each(lambda value: update_with_aux(value), [lambda loss: loss, lambda loss: (loss, {"n": 3})],
          TypeError, "loss_fn returned"),
    (lambda: update_with_carry(lambda loss, carry: loss), TypeError, "must return (loss, carry)"),
    *each(lambda value: update_with_carry(value), CARRIES, ValueError, "loss_fn returned a carry"),
    # A step that has been built, and the functions around it.
    (lambda step: step(), TypeError, "batch"),
    *each(lambda step, value: step.load_state_dict(value), [Path("state.pt"), "state.pt"], ValueError,
          "load the file first"),
    *each(lambda step, value: value(step), [copy.copy, copy.deepcopy, pickle.dumps], TypeError,
          "can't be copied or pickled: build another one"),
    (lambda model: evaluate(model, batches(1), mean_loss, carry=NUMBERS), TypeError, "carry"),
    (lambda: find_batch_size(NUMBERS, len, 8), TypeError, "is not callable"),
]  # fmt: skip


@each_row(ERRORS)
def test_errors(row: Any) -> None:
    model, step, reference, (batch,) = Net(), make_step(), make_step(), batches(1)
    optimizer, first, last = (AdamW(part.parameters()) for part in (model, model.first, model.last))

    def build(**options: Any) -> TrainStep:
        given: dict[str, Any] = {"model": model, "loss_fn": mean_loss, "curve": CURVE} | options
        if "optimizer" not in given:
            own = model if given["model"] in (model, mean_loss) else given["model"]
            given["optimizer"] = optimizer if own is model else AdamW(own.parameters())
        return TrainStep(**given)

    objects = {"model": model, "optimizer": optimizer, "first": first, "last": last, "step": step}
    check_error(row, build=build, **objects)
    assert equal_trees(step(batch), reference(batch))


@pytest.mark.parametrize(
    ("loss_fn", "options", "change", "error"),
    [
        (mean_loss, {}, lambda loss: None, TypeError),
        (lambda *given: (mean_loss(*given), ()), {"has_aux": True}, lambda pair: pair[0], TypeError),
        (counting_loss, {"carry": torch.zeros(2)}, lambda pair: (pair[0], pair[1][:1]), ValueError),
    ],
    ids=["loss", "aux", "carry"],
)
def test_wrong_value_changes_nothing(loss_fn: Any, options: Any, change: Any, error: Any) -> None:
    """It is returned for the last of two micro-batches: the first one has made gradients."""
    first, last, wrong = batches(3)

    def returned(model: nn.Module, batch: Any, *carry: Any) -> Any:
        value = loss_fn(model, batch, *carry)
        return change(value) if batch is wrong else value

    step, reference = (make_step(loss_fn=returned, **options) for _ in range(2))
    assert equal_trees(step(first, last), reference(first, last))
    check_error((lambda: step(first, wrong), error, "loss_fn"), step=step)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert equal_trees(step(first, last), reference(first, last))


@pytest.mark.parametrize("loss_fn", [mean_loss, pair_loss])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_update_without_gradients_changes_nothing(loss_fn: Any, mode: Any) -> None:
    step, reference, (batch,) = make_step(loss_fn=loss_fn), make_step(loss_fn=loss_fn), batches(1)
    with mode(), pytest.raises(ValueError, match="the loss has no gradient with respect to any"):
        step(batch)
    assert equal_trees(step(batch), reference(batch))


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda optimizer, more: optimizer.param_groups[0]["params"].append(more), "different parameters"),
        (lambda optimizer, more: optimizer.param_groups[0]["params"].pop(), "different parameters"),
        (lambda optimizer, more: optimizer.param_groups[0].update(params=[more]), "different parameters"),
        (lambda optimizer, more: optimizer.add_param_group({"params": more}), "different groups"),
    ],
    ids=["appended", "removed", "replaced", "new group"],
)
def test_changed_parameters_are_rejected(name: str, change: Callable[..., Any], message: str) -> None:
    step, (batch,) = make_step(name), batches(1)
    step(batch)
    group = step.optimizer.param_groups[0]
    before, params = state_kept_by_skips(step), [*group["params"]]
    change(step.optimizer, nn.Parameter(torch.ones(1)))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{message}.* the step was built for"):
            step(batch)
    del step.optimizer.param_groups[1:]
    group["params"] = params
    assert equal_trees(state_kept_by_skips(step), before)
    assert step(batch).applied == 2


@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.MSELoss, nn.functional.mse_loss, nn.L1Loss(reduction="sum")], ids=range(4)
)
def test_criterion_as_loss_fn_is_rejected(criterion: Any) -> None:
    """The replacement that the message suggests works."""
    with pytest.raises(TypeError, match=r"loss_fn\(model, batch\): wrap the criterion") as caught:
        make_step(loss_fn=criterion)
    written = str(caught.value).partition("wrap the criterion, ")[2]
    step, (batch,) = make_step(loss_fn=eval(written, {"nn": nn, "criterion": criterion})), batches(1)
    outputs = step.model(batch[0])
    expected = (criterion() if isinstance(criterion, type) else criterion)(outputs, batch[1])
    assert step(batch).loss.item() == pytest.approx(expected.item())


def unpacking_loss(model: Any, batch: Any) -> Any:
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


@pytest.mark.parametrize(
    ("loss_fn", "rows", "error"),
    [(mean_loss, 1, IndexError), (unpacking_loss, 2, RuntimeError), (unpacking_loss, 3, ValueError)],
)
def test_error_hints_at_two_micro_batches(loss_fn: Any, rows: int, error: type[Exception]) -> None:
    """Not if there is one argument, and not for a lack of memory."""
    step, exhausted = make_step(loss_fn=loss_fn), make_step(loss_fn=Mock(side_effect=torch.OutOfMemoryError))
    ((inputs, targets),) = batches(1, rows=rows)
    with pytest.raises(error) as caught:
        step(inputs, targets)
    assert "2 arguments are 2 micro-batches" in caught.value.__notes__[0]
    for call in (lambda: step(inputs), lambda: step(None, None), lambda: exhausted(inputs, targets)):
        with pytest.raises((error, TypeError, torch.OutOfMemoryError)) as caught:
            call()
        assert not hasattr(caught.value, "__notes__")
