"""A kind of training run: what a `TrainStep` is built from, and its batches."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any, cast

import torch
from support.training.models import Batch, Net, batches, mean_loss, nonfinite
from support.training.optimizers import FUSED, make_optimizer
from support.training.steps import CURVE, make_step
from torch import nn
from torch.optim import Optimizer

from torch_bridge import TrainStep

DEFAULT_LOSS_SCALE = 2.0**16


class Kind:
    """A kind of training run: the arguments of a `TrainStep`, and the form of its batches.

    Args:
        optimizer: A name in `OPTIMIZERS`, or a function of the model that returns an optimizer or
            a list of optimizers.
        loss_fn, curve, options: As `TrainStep` takes them; and `count`, a function that returns
            how much data a micro-batch consumes.
        model: Builds the model, with the same weights each time.
        accumulation: Micro-batches per update.
        time: The length of sequences, if the batches are sequences.
        loss_scale, growth_tracker: Under fp16, the loss scale at the start and its counter.
        rtol: 0 if the run has the bits of the loop by hand; else the two round sums in a different
            order.
        is_on_device: The host waits for nothing. By default this is so with a fused optimizer that
            is given by name.
    """

    def __init__(
        self,
        optimizer: Any = "adamw",
        loss_fn: Callable[..., Any] = mean_loss,
        *,
        model: Callable[[], nn.Module] = Net,
        curve: Any = CURVE,
        accumulation: int = 1,
        time: int | None = None,
        loss_scale: float = DEFAULT_LOSS_SCALE,
        growth_tracker: int = 0,
        rtol: float = 0.0,
        is_on_device: bool | None = None,
        **options: Any,
    ) -> None:
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.model = model
        self.curve = curve
        self.accumulation = accumulation
        self.time = time
        self.loss_scale = loss_scale
        self.growth_tracker = growth_tracker
        self.rtol = rtol
        self.is_on_device = is_on_device
        if is_on_device is None:
            self.is_on_device = optimizer in FUSED
        self.options = options

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        """Return new optimizers of the model, in a list."""
        if isinstance(self.optimizer, str):
            return [make_optimizer(self.optimizer, model)]
        built = self.optimizer(model)
        if isinstance(built, list):
            return cast("list[Optimizer]", built)
        return [built]

    def build(
        self, loss_fn: Any = None, device: torch.device | str | None = None, **options: Any
    ) -> TrainStep:
        """Return a new step of this kind, with these options instead of the kind's.

        On a device that is given, a CUDA graph could capture its updates.
        """
        model = self.model().to(device=device)
        optimizer: Any = self.optimizers(model)
        if device is not None:
            for built in optimizer:
                for group in built.param_groups:
                    if "capturable" in group:
                        group["capturable"] = True
        if len(optimizer) == 1:
            (optimizer,) = optimizer
        options = self.options | options
        step = make_step("", model, loss_fn or self.loss_fn, self.curve, optimizer, **options)
        if self.loss_scale != DEFAULT_LOSS_SCALE or self.growth_tracker != 0:
            state = step.state_dict()
            counter = torch.tensor(self.growth_tracker, dtype=torch.int32)
            state["loss_scale"] = [torch.tensor(self.loss_scale), counter]
            step.load_state_dict(state)
        return step

    def updates(
        self,
        count: int,
        bad: Iterable[int] = (),
        values: Sequence[float] = (torch.nan, torch.inf),
        seed: int = 0,
    ) -> list[list[Batch]]:
        """Return the micro-batches of each update; bad updates have these values in turn."""
        data = batches(count * self.accumulation, seed=seed, time=self.time)
        updates = [
            data[start : start + self.accumulation]
            for start in range(0, len(data), self.accumulation)
        ]
        for number, value in zip(sorted(bad), cycle(values), strict=False):
            micro_batches = updates[number]
            micro_batches[-1] = nonfinite(micro_batches[-1], value)
        return updates
