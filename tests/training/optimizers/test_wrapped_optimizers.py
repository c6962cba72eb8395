"""Optimizers wrapped by trainers, with schedulers attached too, and models wrapped by Fabric."""

from typing import Any

import pytest
from accelerate import Accelerator
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning_fabric import Fabric
from support.errors import check_error
from support.training.models import Net, batches, mean_loss
from support.training.optimizers import make_optimizer
from support.training.reads import reads_of
from support.training.steps import CURVE, equal_trees, make_step, train
from torch import nn
from torch.optim.lr_scheduler import StepLR

from torch_bridge import TrainStep

pytestmark = pytest.mark.slow

WRAPPERS: dict[str, Any] = {
    "Lightning": lambda model, optimizer: (model, LightningOptimizer(optimizer)),
    "Fabric": lambda model, optimizer: Fabric(accelerator="cpu", devices=1).setup(model, optimizer),
    "accelerate": lambda model, optimizer: Accelerator(cpu=True).prepare(model, optimizer),
    "two": lambda model, optimizer: (model, LightningOptimizer(Accelerator(cpu=True).prepare(optimizer))),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("name", ["adamw", "momentum", "rmsprop"])
def test_wrapped_optimizer_is_stepped(wrap: Any, name: str) -> None:
    """After a load into the wrapper or the optimizer, the learning rate is still the curve's."""
    model, reference = Net(), make_step(name)
    optimizer = make_optimizer(name, model)
    wrapped_model, wrapped = wrap(model, optimizer)
    assert wrapped is not optimizer
    step = TrainStep(wrapped_model, wrapped, mean_loss, CURVE)
    assert step.optimizer is optimizer
    data = batches(9)
    for number, batch in enumerate(data):
        if number in (4, 6):
            (wrapped if number == 4 else optimizer).load_state_dict(optimizer.state_dict())
        result = step(batch)
        assert equal_trees(result, reference(batch))
        assert [float(group["lr"]) for group in optimizer.param_groups] == result.lr.tolist()
    assert equal_trees(list(model.parameters()), list(reference.model.parameters()))
    if name == "adamw":
        assert reads_of(lambda: step(data[0])) == 0
    other = TrainStep(*wrap(fresh := Net(), make_optimizer(name, fresh)), mean_loss, CURVE)
    other.load_state_dict(step.state_dict())
    assert equal_trees(other(data[0]), step(data[0]))


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("outside", [True, False])
def test_scheduler_of_wrapped_optimizer_is_rejected(wrap: Any, outside: bool) -> None:
    """Attached to the wrapper or to the optimizer inside, before the step is built or after."""
    model, data, reference = Net(), batches(2), make_step()
    optimizer = make_optimizer("adamw", model)
    wrapped_model, wrapped = wrap(model, optimizer)

    def build() -> TrainStep:
        return TrainStep(wrapped_model, wrapped, mean_loss, CURVE)

    target = wrapped if outside else optimizer
    StepLR(target, 10)
    check_error((build, ValueError, "a scheduler is attached"), optimizer=optimizer)
    del target.step
    step = build()
    for batch in data:
        StepLR(target, 10)
        check_error((lambda step: step(data[0]), ValueError, "a scheduler is attached"), step=step)
        del target.step
        assert equal_trees(step(batch), reference(batch))


def test_wrapped_optimizer_among_several_is_unwrapped() -> None:
    model = Net()
    first, last = (make_optimizer("adamw", part) for part in (model.first, model.last))
    step = make_step(model=model, optimizer=[LightningOptimizer(first), last])
    assert step.optimizers == (first, last)
    with pytest.raises(ValueError, match="belong to several optimizers"):
        make_step(model=model, optimizer=[LightningOptimizer(first), first])


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential], ids=["itself", "nested"])
def test_fabric_mixed_precision_is_rejected(precision: Any, wrap: Any) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    inner = Net()
    model, optimizer = fabric.setup(inner, make_optimizer("adamw", inner))
    with pytest.raises(ValueError, match=r"set up by Fabric .* Give the training step model\.module"):
        TrainStep(wrap(model), optimizer, mean_loss, CURVE)
    step = TrainStep(model.module, optimizer, mean_loss, CURVE, precision="bf16")
    reference = make_step(precision="bf16")
    data = batches(3)
    assert equal_trees(train(step, data), train(reference, data))
