"""Optimizers wrapped by trainers, with schedulers attached too, and models wrapped by Fabric."""

import copy

import pytest
from accelerate import Accelerator
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning_fabric import Fabric
from support.raises import raises
from support.schedulers.runs import lrs_of
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, make_step, train
from support.trees import assert_equal_trees
from torch.optim.lr_scheduler import StepLR

from torch_bridge import TrainStep

pytestmark = pytest.mark.slow


def fabric(model, optimizer):
    fabric = Fabric(accelerator="cpu", devices=1)
    return fabric.setup(model, optimizer)


def accelerate(model, optimizer):
    accelerator = Accelerator(cpu=True)
    return accelerator.prepare(model, optimizer)


def fabric_around_accelerate(model, optimizer):
    return fabric(model, Accelerator(cpu=True).prepare(optimizer))


by_every_wrapper = pytest.mark.parametrize("wrap", [fabric, accelerate, fabric_around_accelerate])


@by_every_wrapper
@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_wrapped_optimizer_is_stepped(wrap, name):
    """After a load into the wrapper or the optimizer, the learning rate is still the curve's."""
    model = Net()
    reference = make_step(name)
    optimizer = make_optimizer(name, model)
    wrapped_model, wrapped = wrap(model, optimizer)
    assert wrapped is not optimizer
    step = TrainStep(wrapped_model, wrapped, mean_loss, CURVE)
    assert step.optimizer is optimizer
    data = batches(9)
    for number, batch in enumerate(data):
        if number == 4:
            wrapped.load_state_dict(optimizer.state_dict())
        if number == 6:
            optimizer.load_state_dict(optimizer.state_dict())
        result = step(batch)
        assert_equal_trees(result, reference(batch))
        assert lrs_of(optimizer) == result.lr.tolist()
    weights = list(model.parameters())
    expected_weights = list(reference.model.parameters())
    assert_equal_trees(weights, expected_weights)
    if name == "adamw":
        assert reads_of(lambda: step(data[0])) == []

    model = Net()
    optimizer = make_optimizer(name, model)
    wrapped_model, wrapped = wrap(model, optimizer)
    resumed = TrainStep(wrapped_model, wrapped, mean_loss, CURVE)
    resumed.load_state_dict(step.state_dict())
    assert_equal_trees(resumed(data[0]), step(data[0]))


@by_every_wrapper
@pytest.mark.parametrize("is_outside", [True, False])
def test_scheduler_of_wrapped_optimizer_is_rejected(wrap, is_outside):
    """Attached to the wrapper or to the optimizer inside; to the latter, also after the build."""
    model = Net()
    reference = make_step()
    optimizer = make_optimizer("adamw", model)
    wrapped_model, wrapped = wrap(model, optimizer)
    scheduled = optimizer
    if is_outside:
        scheduled = wrapped

    StepLR(scheduled, 10)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="a scheduler is attached"):
        TrainStep(wrapped_model, wrapped, mean_loss, CURVE)
    assert_equal_trees(optimizer.state_dict(), before)
    del scheduled.step

    step = TrainStep(wrapped_model, wrapped, mean_loss, CURVE)
    for batch in batches(2):
        before = step.state_dict()
        StepLR(optimizer, 10)
        with pytest.raises(ValueError, match="a scheduler is attached"):
            step(batch)
        del optimizer.step
        assert_equal_trees(step.state_dict(), before)
        assert_equal_trees(step(batch), reference(batch))


def test_wrapped_optimizer_among_several_is_unwrapped():
    model = Net()
    first = make_optimizer("adamw", model.first)
    last = make_optimizer("adamw", model.last)
    wrapped = Accelerator(cpu=True).prepare(first)
    step = make_step(model=model, optimizer=[wrapped, last])
    assert step.optimizers == (first, last)
    with pytest.raises(ValueError, match="belong to several optimizers"):
        make_step(model=model, optimizer=[wrapped, first])


@raises(TypeError, "Lightning's Trainer would not count", "use Fabric")
def test_optimizer_of_lightnings_trainer():
    optimizer = make_optimizer("adamw", Net())
    make_step(optimizer=LightningOptimizer(optimizer))


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_fabric_rejects_a_step_under_its_mixed_precision(precision):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    inner = Net()
    adamw = make_optimizer("adamw", inner)
    model, optimizer = fabric.setup(inner, adamw)
    data = batches(3)
    step = TrainStep(model, optimizer, mean_loss, CURVE)
    with raises(RuntimeError, r"fabric.backward(loss)"):
        step(data[0])
    step = TrainStep(model.module, optimizer, mean_loss, CURVE, precision="bf16")
    reference = make_step(precision="bf16")
    results = train(step, data)
    expected = train(reference, data)
    assert_equal_trees(results, expected)
