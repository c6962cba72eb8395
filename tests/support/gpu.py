"""Training steps on a GPU, captured and eager, for tests that compare them."""

import copy
from collections.abc import Iterable
from typing import Any

from support.training import CURVE, FUSED, Batch, Net, mean_loss, optimizer_of, same
from torch import nn

from torch_bridge import TrainStep
from torch_bridge.training.capture import Graphs


def on_gpu(data: Iterable[Batch]) -> list[Batch]:
    return [(inputs.cuda(), targets.cuda()) for inputs, targets in data]


def gpu_step(
    name: str = "adamw", model: nn.Module | None = None, loss_fn: Any = mean_loss, **options: Any
) -> TrainStep:
    model = (Net() if model is None else model).cuda()
    kind: Any = FUSED[name][0]
    more = {"capturable": True} if "capturable" in kind(model.parameters()).defaults else {}
    return TrainStep(model, optimizer_of(name, model, **more), loss_fn, CURVE, **options)


def captured_and_eager(
    name: str = "adamw", model: nn.Module | None = None, loss_fn: Any = mean_loss, **options: Any
) -> tuple[TrainStep, TrainStep]:
    """Two steps alike, but for the graphs."""
    model = Net() if model is None else model
    captured, eager = (
        gpu_step(name, copy.deepcopy(model), loss_fn, cuda_graph=flag, **options) for flag in (True, False)
    )
    return captured, eager


def graphs_of(step: TrainStep) -> Graphs:
    assert step._graphs is not None
    return step._graphs


def assert_same_state(one: TrainStep, other: TrainStep) -> None:
    assert same(one.state_dict(), other.state_dict())
