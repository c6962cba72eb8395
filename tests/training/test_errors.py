"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.curves.descriptions import CURVES_IN_UNITS_OF_8
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.steps import CURVE, make_step
from support.trees import equal_trees
from support.wrong import wrong
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from plateau_jax import Curve, DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep, evaluate, find_batch_size

HOLD = HoldUntilFlat(3, limit=9)
LINEAR = PlateauCurve(30, decay_shape="linear")


@pytest.fixture
def model() -> Net:
    return Net()


@contextmanager
def unchanged(*objects: Any) -> Iterator[None]:
    """Check in the end that the states of these objects have not changed."""
    before = [copy.deepcopy(stateful.state_dict()) for stateful in objects]
    yield
    after = [stateful.state_dict() for stateful in objects]
    assert equal_trees(after, before)


@pytest.fixture
def optimizer(model: Net) -> Iterator[Optimizer]:
    """An optimizer over the model; neither may change."""
    optimizer = AdamW(model.parameters())
    with unchanged(model, optimizer):
        yield optimizer


@pytest.fixture
def optimizers(model: Net) -> Iterator[list[Optimizer]]:
    """Two optimizers, over a layer each; neither they nor the model may change."""
    first = AdamW(model.first.parameters())
    last = AdamW(model.last.parameters())
    with unchanged(model, first, last):
        yield [first, last]


@pytest.fixture
def step() -> Iterator[TrainStep]:
    """A step, which must still make the update of a new one when the test ends."""
    step = make_step()
    yield step
    new_step = make_step()
    (batch,) = batches(1)
    assert equal_trees(step(batch), new_step(batch))


# Arguments.


@pytest.mark.parametrize(
    ("error", "options", "requirement"),
    [
        (ValueError, {"precision": "tf32"}, "fp32"),
        (ValueError, {"on_nonfinite": "stop"}, "skip"),
        (ValueError, {"max_norm": 0}, "max_norm"),
        (ValueError, {"max_norm": float("nan")}, "max_norm"),
        (TypeError, {"max_norm": True}, "number"),
        (TypeError, {"clock": "wait"}, "HoldUntilFlat"),
        (ValueError, {"initial_updates": -1}, "lie in 0 …"),
        (TypeError, {"initial_updates": 1.5}, "integer"),
        (ValueError, {"initial_updates": 2**63 - 1}, "2**62"),
    ],
)
def test_wrong_option(
    model: Net,
    optimizer: Optimizer,
    error: type[Exception],
    options: dict[str, Any],
    requirement: str,
) -> None:
    with pytest.raises(error) as caught:
        TrainStep(model, optimizer, mean_loss, CURVE, **options)
    ((name, value),) = options.items()
    message = str(caught.value)
    assert f"{name} = {value!r}" in message
    assert requirement in message


@pytest.mark.parametrize(
    "options",
    [{"unit": 3}, {"count": len}, {"hold": HOLD}, {"applied": 3}],
    ids=["unit", "count", "hold", "applied"],
)
@wrong(TypeError, "unexpected keyword argument")
def test_unknown_option(model: Net, optimizer: Optimizer, options: dict[str, Any]) -> None:
    TrainStep(model, optimizer, mean_loss, CURVE, **options)


@wrong(TypeError, "loss_fn = None", "callable")
def test_no_loss_function(model: Net, optimizer: Optimizer) -> None:
    TrainStep(model, optimizer, None, CURVE)


@wrong(TypeError, "curve = <function", "must be a Curve")
def test_function_as_curve(model: Net, optimizer: Optimizer) -> None:
    TrainStep(model, optimizer, mean_loss, lambda step: 0.1)


@wrong(ValueError, "curve has 2", "parameter groups is 1")
def test_more_curves_than_groups(model: Net, optimizer: Optimizer) -> None:
    TrainStep(model, optimizer, mean_loss, [CURVE, CURVE])


@wrong(TypeError, "clock = [Hold", "a list of such rules")
def test_data_clock_among_holds(model: Net, optimizer: Optimizer) -> None:
    rules = [HOLD, DataClock(3)]
    TrainStep(model, optimizer, mean_loss, CURVE, clock=rules)


@wrong(ValueError, "updates = 4", "DataClock(3, count=n)")
def test_initial_updates_of_unknown_size(model: Net, optimizer: Optimizer) -> None:
    clock = DataClock(3)
    TrainStep(model, optimizer, mean_loss, CURVE, clock=clock, initial_updates=4)


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("curve", CURVES_IN_UNITS_OF_8)
@wrong(ValueError, "must be DataClock(8)")
def test_clock_of_a_different_unit(
    model: Net, optimizer: Optimizer, curve: Curve, unit: int
) -> None:
    TrainStep(model, optimizer, mean_loss, curve, clock=DataClock(unit))


@wrong(ValueError, "cuda_graph=True", "CUDA")
def test_cuda_graph_on_a_cpu(model: Net, optimizer: Optimizer) -> None:
    TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)


@pytest.mark.parametrize(
    "carry", [(), [], {}, 3, 1.0, (torch.zeros(1), 2), "state", (None,)], ids=repr
)
@wrong(TypeError, "carry")
def test_carry_without_tensors(model: Net, optimizer: Optimizer, carry: Any) -> None:
    TrainStep(model, optimizer, mean_loss, CURVE, carry=carry)


# Optimizers, and their learning rates.


class TwoStepSGD(SGD):
    def first_step(self) -> None: ...

    def second_step(self) -> None: ...


class LineSearch(Optimizer):
    def step(self, closure: Any) -> None:
        closure()


@wrong(TypeError, "optimizer = 'adamw'", "must be a torch.optim.Optimizer")
def test_name_as_optimizer(model: Net) -> None:
    TrainStep(model, "adamw", mean_loss, CURVE)


@wrong(ValueError, "1 of the optimizer's 5 parameters are not the model's")
def test_parameter_outside_the_model(model: Net) -> None:
    parameters = [*model.parameters(), nn.Parameter(torch.ones(1))]
    optimizer = SGD(parameters)
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(TypeError, "LineSearch needs")
def test_optimizer_that_needs_a_closure(model: Net) -> None:
    optimizer = LineSearch(model.parameters(), {"lr": 0.1})
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(TypeError, "LBFGS needs a closure")
def test_lbfgs_among_two_optimizers(model: Net, optimizers: list[Optimizer]) -> None:
    lbfgs = LBFGS(model.last.parameters())
    TrainStep(model, [optimizers[0], lbfgs], mean_loss, CURVE)


@wrong(TypeError, "TwoStepSGD updates in first_step() and second_step()", "lambda_lr in a loop")
def test_sharpness_aware_optimizer(model: Net) -> None:
    optimizer = TwoStepSGD(model.parameters(), lr=0.1)
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(ValueError, "2 parameters", "several optimizers")
def test_parameters_of_two_optimizers(model: Net, optimizer: Optimizer) -> None:
    first = AdamW(model.first.parameters())
    TrainStep(model, [optimizer, first], mean_loss, CURVE)


@wrong(TypeError, "None", "must be a torch.optim.Optimizer")
def test_none_among_optimizers(model: Net, optimizers: list[Optimizer]) -> None:
    TrainStep(model, [optimizers[0], None], mean_loss, CURVE)


@pytest.mark.parametrize("lr", [1e-39, 1e39])
@wrong(ValueError, "learning rate", "{lr}")
def test_peak_outside_float32(model: Net, lr: float) -> None:
    optimizer = make_optimizer("adamw", model, lr=lr)
    TrainStep(model, optimizer, mean_loss, CURVE)


# The curves of several optimizers.


@pytest.mark.parametrize("number", [1, 3])
@wrong(ValueError, "curve has length {number}, and optimizers 2")
def test_curves_for_a_different_number_of_optimizers(
    model: Net, optimizers: list[Optimizer], number: int
) -> None:
    TrainStep(model, optimizers, mean_loss, [CURVE] * number)


@wrong(ValueError, "curve has 2", "parameter groups is 1")
def test_more_curves_than_groups_of_one_optimizer(model: Net, optimizers: list[Optimizer]) -> None:
    TrainStep(model, optimizers, mean_loss, [CURVE, [CURVE, CURVE]])


@wrong(TypeError, "0.1", "must be a Curve")
def test_number_among_curves(model: Net, optimizers: list[Optimizer]) -> None:
    TrainStep(model, optimizers, mean_loss, [CURVE, 0.1])


@wrong(ValueError, "the same curve")
def test_hold_of_two_curves(model: Net, optimizers: list[Optimizer]) -> None:
    TrainStep(model, optimizers, mean_loss, [CURVE, LINEAR], clock=HOLD)


# Models that cannot be trained.


@wrong(ValueError, "fp16")
def test_half_precision_parameters_under_fp16() -> None:
    model = Net().half()
    make_step(model=model, precision="fp16")


@wrong(ValueError, "made under torch.inference_mode()")
def test_model_of_inference_mode() -> None:
    with torch.inference_mode():
        model = Net()
    make_step(model=model)


@wrong(ValueError, "dummy batch")
def test_lazy_model() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    make_step(model=model)


# A step that has been built, and the functions around it.


@wrong(TypeError, "batch")
def test_update_without_a_batch(step: TrainStep) -> None:
    step()


@pytest.mark.parametrize("path", [Path("state.pt"), "state.pt"])
@wrong(ValueError, "load the file first")
def test_path_instead_of_a_state(step: TrainStep, path: Any) -> None:
    step.load_state_dict(path)


@pytest.mark.parametrize("copy_step", [copy.copy, copy.deepcopy, pickle.dumps])
@wrong(TypeError, "can't be copied or pickled: build another one")
def test_copy_of_a_step(step: TrainStep, copy_step: Callable[[Any], Any]) -> None:
    copy_step(step)


@wrong(TypeError, "carry")
def test_numbers_as_carry_of_an_evaluation(model: Net) -> None:
    numbers = list(range(10_000))
    evaluate(model, batches(1), mean_loss, carry=numbers)


@wrong(TypeError, "is not callable")
def test_numbers_as_function_of_a_batch_size() -> None:
    numbers = list(range(10_000))
    find_batch_size(numbers, len, 8)


# Criteria as loss functions.


def check_advice_to_wrap(criterion: Any, advice: str) -> None:
    """Check that the error about a criterion as the loss function ends with this advice."""
    message = r"loss_fn\(model, batch\): wrap the criterion"
    with pytest.raises(TypeError, match=message) as caught:
        make_step(loss_fn=criterion)
    assert str(caught.value).endswith(f"wrap the criterion, {advice}")


def check_loss(loss_fn: Any, criterion: Any) -> None:
    """Check that an update with this loss function has the loss of the criterion."""
    step = make_step(loss_fn=loss_fn)
    ((inputs, targets),) = batches(1)
    expected = criterion(step.model(inputs), targets)
    result = step((inputs, targets))
    assert result.loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.functional.mse_loss, nn.L1Loss(reduction="sum")]
)
def test_criterion_as_loss_fn(criterion: Any) -> None:
    """The replacement that the message suggests works."""
    advice = "lambda model, batch: criterion(model(batch[0]), batch[1])"
    check_advice_to_wrap(criterion, advice)
    check_loss(lambda model, batch: criterion(model(batch[0]), batch[1]), criterion)


def test_class_of_a_criterion_as_loss_fn() -> None:
    advice = "lambda model, batch: nn.MSELoss()(model(batch[0]), batch[1])"
    check_advice_to_wrap(nn.MSELoss, advice)
    mse_loss = nn.functional.mse_loss
    check_loss(lambda model, batch: nn.MSELoss()(model(batch[0]), batch[1]), mse_loss)
