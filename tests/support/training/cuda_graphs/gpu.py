"""Training steps whose updates a CUDA graph can hold, on a GPU, and a guard against waiting for it."""

import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from support.training.models import Batch, Net, mean_loss
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import CURVE, step_over
from torch import nn
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

from torch_bridge import TrainStep
from torch_bridge.training.cuda_graphs import GraphedUpdate

# Before torch 2.13, fused Adagrad does not take CUDA tensors.
FUSED_ON_GPU = [name for name in FUSED if name != "adagrad" or TorchVersion(torch.__version__) >= "2.13"]


def on_gpu(data: Iterable[Batch], device: str = "cuda") -> list[Batch]:
    return [(inputs.to(device), targets.to(device)) for inputs, targets in data]


def gpu_step(
    name: str = "adamw",
    model: nn.Module | None = None,
    loss_fn: Any = mean_loss,
    optimizers: Callable[[nn.Module], Any] | None = None,
    curve: Any = CURVE,
    device: str = "cuda",
    **options: Any,
) -> TrainStep:
    """Return a step over optimizers of this constructor, or the one of this name."""
    model = (Net() if model is None else model).to(device)
    built: Any = optimizers(model) if optimizers else make_optimizer(name, model)
    listed: Sequence[Any] = [built] if isinstance(built, Optimizer) else built
    for optimizer in listed:
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
    return step_over(model, listed if len(listed) > 1 else listed[0], loss_fn, curve, **options)


def graphs_of(step: TrainStep) -> GraphedUpdate:
    assert step._graphs is not None
    return step._graphs


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
