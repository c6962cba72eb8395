"""Training steps on a GPU, captured and eager, for tests that compare them."""

import copy
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from support.training.models import Batch, Net, mean_loss
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import CURVE
from support.training.trees import equal_trees
from torch import nn
from torch.torch_version import TorchVersion

from torch_bridge import TrainStep
from torch_bridge.training.cuda_graphs.capture import GraphedUpdate

# Before torch 2.13, fused Adagrad does not take CUDA tensors.
FUSED_ON_GPU = [name for name in FUSED if name != "adagrad" or TorchVersion(torch.__version__) >= "2.13"]


def on_gpu(data: Iterable[Batch]) -> list[Batch]:
    return [(inputs.cuda(), targets.cuda()) for inputs, targets in data]


def gpu_step(
    name: str = "adamw", model: nn.Module | None = None, loss_fn: Any = mean_loss, **options: Any
) -> TrainStep:
    model = (Net() if model is None else model).cuda()
    kind: Any = FUSED[name][0]
    more = {"capturable": True} if "capturable" in kind(model.parameters()).defaults else {}
    return TrainStep(model, make_optimizer(name, model, **more), loss_fn, CURVE, **options)


def captured_and_eager(
    name: str = "adamw", model: nn.Module | None = None, loss_fn: Any = mean_loss, **options: Any
) -> tuple[TrainStep, TrainStep]:
    """Return two equal steps, one with CUDA graphs and one without."""
    model = Net() if model is None else model
    captured, eager = (
        gpu_step(name, copy.deepcopy(model), loss_fn, cuda_graph=flag, **options) for flag in (True, False)
    )
    return captured, eager


def graphs_of(step: TrainStep) -> GraphedUpdate:
    assert step._graphs is not None
    return step._graphs


def assert_same_state(one: TrainStep, other: TrainStep) -> None:
    assert equal_trees(one.state_dict(), other.state_dict())


@contextmanager
def no_waiting() -> Generator[None]:
    """Make torch raise an error if anything waits for the device."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")  # once per process
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
