"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import pickle
from contextlib import contextmanager
from pathlib import Path

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

from plateau_jax import DataClock, HoldUntilFlat, PlateauCurve
from torch_bridge import TrainStep

HOLD = HoldUntilFlat(3, limit=9)
LINEAR = PlateauCurve(30, decay_shape="linear")


@pytest.fixture
def model():
    return Net()


@contextmanager
def unchanged(*objects):
    """Check in the end that the states of these objects have not changed."""
    before = [copy.deepcopy(stateful.state_dict()) for stateful in objects]
    yield
    after = [stateful.state_dict() for stateful in objects]
    assert equal_trees(after, before)


@pytest.fixture
def optimizer(model):
    """An optimizer over the model; neither may change."""
    optimizer = AdamW(model.parameters())
    with unchanged(model, optimizer):
        yield optimizer


@pytest.fixture
def optimizers(model):
    """Two optimizers, over a layer each; neither they nor the model may change."""
    first = AdamW(model.first.parameters())
    last = AdamW(model.last.parameters())
    with unchanged(model, first, last):
        yield [first, last]


@pytest.fixture
def step():
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
    model,
    optimizer,
    error,
    options,
    requirement,
):
    with pytest.raises(error) as caught:
        TrainStep(model, optimizer, mean_loss, CURVE, **options)
    ((name, value),) = options.items()
    message = str(caught.value)
    assert f"{name} = {value!r}" in message
    assert requirement in message


@wrong(TypeError, "loss_fn = None", "callable")
def test_no_loss_function(model, optimizer):
    TrainStep(model, optimizer, None, CURVE)


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("curve", CURVES_IN_UNITS_OF_8)
@wrong(ValueError, "must be DataClock(8)")
def test_clock_of_a_different_unit(model, optimizer, curve, unit):
    TrainStep(model, optimizer, mean_loss, curve, clock=DataClock(unit))


@wrong(ValueError, "cuda_graph=True", "CUDA")
def test_cuda_graph_on_a_cpu(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)


@pytest.mark.parametrize(
    "carry", [(), [], {}, 3, 1.0, (torch.zeros(1), 2), "state", (None,)], ids=repr
)
@wrong(TypeError, "carry")
def test_carry_without_tensors(model, optimizer, carry):
    TrainStep(model, optimizer, mean_loss, CURVE, carry=carry)


# Optimizers, and their learning rates.


class TwoStepSGD(SGD):
    def first_step(self): ...

    def second_step(self): ...


class LineSearch(Optimizer):
    def step(self, closure):
        closure()


@wrong(TypeError, "optimizer = 'adamw'", "must be a torch.optim.Optimizer")
def test_name_as_optimizer(model):
    TrainStep(model, "adamw", mean_loss, CURVE)


@wrong(ValueError, "1 of the optimizer's 5 parameters are not the model's")
def test_parameter_outside_the_model(model):
    parameters = [*model.parameters(), nn.Parameter(torch.ones(1))]
    optimizer = SGD(parameters)
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(TypeError, "LineSearch needs")
def test_optimizer_that_needs_a_closure(model):
    optimizer = LineSearch(model.parameters(), {"lr": 0.1})
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(TypeError, "LBFGS needs a closure")
def test_lbfgs_among_two_optimizers(model, optimizers):
    lbfgs = LBFGS(model.last.parameters())
    TrainStep(model, [optimizers[0], lbfgs], mean_loss, CURVE)


@wrong(TypeError, "TwoStepSGD updates in first_step() and second_step()", "lambda_lr in a loop")
def test_sharpness_aware_optimizer(model):
    optimizer = TwoStepSGD(model.parameters(), lr=0.1)
    TrainStep(model, optimizer, mean_loss, CURVE)


@wrong(ValueError, "2 parameters", "several optimizers")
def test_parameters_of_two_optimizers(model, optimizer):
    first = AdamW(model.first.parameters())
    TrainStep(model, [optimizer, first], mean_loss, CURVE)


@pytest.mark.parametrize("lr", [1e-39, 1e39])
@wrong(ValueError, "learning rate", "{lr}")
def test_peak_outside_float32(model, lr):
    optimizer = make_optimizer("adamw", model, lr=lr)
    TrainStep(model, optimizer, mean_loss, CURVE)


# The curves of several optimizers.


@pytest.mark.parametrize("number", [1, 3])
@wrong(ValueError, "curve has length {number}, and optimizers 2")
def test_curves_for_a_different_number_of_optimizers(model, optimizers, number):
    TrainStep(model, optimizers, mean_loss, [CURVE] * number)


@wrong(ValueError, "curve has length 2", "parameter groups is 1")
def test_more_curves_than_groups_of_one_optimizer(model, optimizers):
    TrainStep(model, optimizers, mean_loss, [CURVE, [CURVE, CURVE]])


@wrong(ValueError, "the same curve")
def test_hold_of_two_curves(model, optimizers):
    TrainStep(model, optimizers, mean_loss, [CURVE, LINEAR], clock=HOLD)


# Models that cannot be trained.


@wrong(ValueError, "fp16")
def test_half_precision_parameters_under_fp16():
    model = Net().half()
    make_step(model=model, precision="fp16")


@wrong(ValueError, "made under torch.inference_mode()")
def test_model_of_inference_mode():
    with torch.inference_mode():
        model = Net()
    make_step(model=model)


@wrong(ValueError, "dummy batch")
def test_lazy_model():
    model = nn.Sequential(nn.LazyLinear(2))
    make_step(model=model)


# A step that has been built, and the functions around it.


@wrong(TypeError, "batch")
def test_update_without_a_batch(step):
    step()


@pytest.mark.parametrize("path", [Path("state.pt"), "state.pt"])
@wrong(ValueError, "load the file first")
def test_path_instead_of_a_state(step, path):
    step.load_state_dict(path)


@pytest.mark.parametrize("copy_step", [copy.copy, copy.deepcopy, pickle.dumps])
@wrong(TypeError, "can't be copied or pickled: build another one")
def test_copy_of_a_step(step, copy_step):
    copy_step(step)


# Criteria as loss functions.


def check_advice_to_wrap(criterion, advice):
    """Check that the error about a criterion as the loss function ends with this advice."""
    message = r"loss_fn\(model, batch\): wrap the criterion"
    with pytest.raises(TypeError, match=message) as caught:
        make_step(loss_fn=criterion)
    assert str(caught.value).endswith(f"wrap the criterion, {advice}")


def check_loss(loss_fn, criterion):
    """Check that an update with this loss function has the loss of the criterion."""
    step = make_step(loss_fn=loss_fn)
    ((inputs, targets),) = batches(1)
    expected = criterion(step.model(inputs), targets)
    result = step((inputs, targets))
    assert result.loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "criterion", [nn.MSELoss(), nn.functional.mse_loss, nn.L1Loss(reduction="sum")]
)
def test_criterion_as_loss_fn(criterion):
    """The replacement that the message suggests works."""
    advice = "lambda model, batch: criterion(model(batch[0]), batch[1])"
    check_advice_to_wrap(criterion, advice)
    check_loss(lambda model, batch: criterion(model(batch[0]), batch[1]), criterion)
