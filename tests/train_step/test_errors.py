"""A training step rejects invalid input with one clear error, and changes nothing."""

import copy
import math
import re

import pytest
import torch
from support.curves.descriptions import scaled
from support.curves.requirements import AN_INTEGER, in_range
from support.raises import raises
from support.training.models import Net, batches, mean_loss
from support.training.steps import CURVE, make_step
from torch import nn
from torch.optim import SGD, Adam, AdamW

from plateau_jax import DataClock
from torch_bridge import TrainStep


@pytest.fixture
def model():
    return Net()


@pytest.fixture
def optimizer(model):
    return AdamW(model.parameters())


@pytest.fixture
def optimizers(model):
    """An optimizer for each layer."""
    return [AdamW(model.first.parameters()), AdamW(model.last.parameters())]


@pytest.fixture
def step():
    return make_step()


# Arguments.


@raises(ValueError, "precision = 'tf32'", "fp32")
def test_unknown_precision(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, precision="tf32")


@raises(ValueError, "synchronize = 'never'", "micro")
def test_unknown_synchronization(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, synchronize="never")


@raises(ValueError, "max_norm = 0", "max_norm")
def test_norm_of_zero(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, max_norm=0)


@raises(ValueError, "initial_updates = -1", in_range(0, 2**62))
def test_negative_initial_updates(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, initial_updates=-1)


@raises(TypeError, "model = SGD", "must be a torch.nn.Module")
def test_swapped_model_and_optimizer(model):
    TrainStep(torch.optim.SGD(model.parameters()), model, mean_loss, CURVE)


@raises(TypeError, "loss_fn = None", "callable")
def test_no_loss_function(model, optimizer):
    TrainStep(model, optimizer, None, CURVE)


@raises(ValueError, "cuda_graph=True", "CUDA")
def test_cuda_graph_on_a_cpu(model, optimizer):
    TrainStep(model, optimizer, mean_loss, CURVE, cuda_graph=True)


@pytest.mark.parametrize("carry", [(), (torch.zeros(1), 2)], ids=repr)
@raises(TypeError, "carry")
def test_carry_without_tensors(model, optimizer, carry):
    TrainStep(model, optimizer, mean_loss, CURVE, carry=carry)


# Optimizers, and their curves.


class TwoStepSGD(SGD):
    def first_step(self): ...

    def second_step(self): ...


@raises(TypeError, "optimizer = 'adamw'", "must be a torch.optim.Optimizer")
def test_name_as_optimizer(model):
    TrainStep(model, "adamw", mean_loss, CURVE)


@raises(ValueError, "1 of the optimizer's 5 parameters are not the model's")
def test_parameter_outside_the_model(model):
    parameters = [*model.parameters(), nn.Parameter(torch.ones(1))]
    optimizer = SGD(parameters)
    TrainStep(model, optimizer, mean_loss, CURVE)


@raises(TypeError, "TwoStepSGD updates in first_step() and second_step()", "lambda_lr in a loop")
def test_sharpness_aware_optimizer(model):
    optimizer = TwoStepSGD(model.parameters(), lr=0.1)
    TrainStep(model, optimizer, mean_loss, CURVE)


@raises(ValueError, "2 parameters", "several optimizers")
def test_parameters_of_two_optimizers(model, optimizer):
    first = AdamW(model.first.parameters())
    TrainStep(model, [optimizer, first], mean_loss, CURVE)


@raises(ValueError, "curve has length 3, and optimizers 2")
def test_curves_for_a_different_number_of_optimizers(model, optimizers):
    TrainStep(model, optimizers, mean_loss, [CURVE] * 3)


# Clocks and peaks.

(BATCH,) = batches(1)


@pytest.fixture
def counted_step(model):
    return make_step(model=model, clock=DataClock(2))


@pytest.fixture
def two_groups(model):
    return SGD([{"params": model.first.parameters()}, {"params": model.last.parameters()}])


@pytest.fixture
def step_of_two_groups(model, two_groups):
    return TrainStep(model, two_groups, mean_loss, CURVE)


@raises(ValueError, "clock = DataClock(unit=1, ", "must be DataClock(8)")
def test_batch_plan_of_the_second_group(model, two_groups):
    TrainStep(model, two_groups, mean_loss, [CURVE, scaled()], clock=DataClock(1))


@raises(TypeError, "step(batch, count=n)", "DataClock(2, count=n)")
def test_update_without_a_count(counted_step):
    counted_step(BATCH)


@raises(ValueError, "count = -1", in_range(0, 2**53))
def test_negative_count_of_an_update(counted_step):
    counted_step(BATCH, count=-1)


@raises(TypeError, "count", "torch.float32", AN_INTEGER)
def test_float_tensor_as_count(counted_step):
    counted_step(BATCH, count=torch.tensor(2.0))


@raises(ValueError, "count", "(1,)", "scalar")
def test_vector_as_count(counted_step):
    counted_step(BATCH, count=torch.tensor([2]))


@raises(ValueError, "peak[1] = nan")
def test_peak_that_is_not_a_number(step_of_two_groups):
    step_of_two_groups.set_peak([0.5, math.nan])


@pytest.fixture
def used_optimizer(model):
    """An optimizer that has made an update without a schedule."""
    optimizer = Adam(model.parameters())
    mean_loss(model, BATCH).backward()
    optimizer.step()
    return optimizer


@raises(ValueError, "initial_updates = 3, but param_groups[0]", '"initial_lr"')
def test_initial_updates_without_an_initial_lr(model, used_optimizer):
    TrainStep(model, used_optimizer, mean_loss, CURVE, initial_updates=3)


# Models that cannot be trained.


@raises(ValueError, "fp16")
def test_half_precision_parameters_under_fp16():
    model = Net().half()
    make_step(model=model, precision="fp16")


@raises(ValueError, "parameters are on the meta device", "before you build the optimizer")
def test_model_without_memory():
    make_step(model=Net().to("meta"))


# A step that has been built, and the functions around it.


@raises(TypeError, "can't be copied or pickled: build another one")
def test_copy_of_a_step(step):
    copy.deepcopy(step)


# Criteria as loss functions.


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.functional.mse_loss])
def test_criterion_as_loss_fn(criterion):
    """The replacement that the message suggests works."""
    advice = "lambda model, batch: criterion(model(batch[0]), batch[1])"
    with pytest.raises(TypeError, match=re.escape(advice)):
        make_step(loss_fn=criterion)
    step = make_step(loss_fn=lambda model, batch: criterion(model(batch[0]), batch[1]))
    ((inputs, targets),) = batches(1)
    expected = criterion(step.model(inputs), targets)
    assert step((inputs, targets)).loss == expected
