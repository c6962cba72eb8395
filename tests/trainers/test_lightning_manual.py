"""With manual optimization, Lightning counts the updates of a `TrainStep` as its own.

That loop, written as in Lightning's manual, calls the optimizer's `step` after some backward passes
over the same batches. The tests compare everything that depends on Lightning's count: where the run
ends, and which checkpoints it saves.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import pytest
import torch
from hypothesis import given, settings, strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.profilers import SimpleProfiler
from support.trainers import trainers
from support.trainers.trainers import CURVE, LIGHTNING_WARNING
from torch import Tensor

from torch_bridge import TrainStep, make_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    # With manual optimization, Lightning warns that checkpoints are saved after the update.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning"),
]


class ByHand(lightning.LightningModule):
    """A loop as in Lightning's manual, with an update of every `accumulation` batches."""

    def __init__(
        self, accumulation: int = 1, optimizers: int = 1, overflow_at: int | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = trainers.net()
        self.accumulation, self.number = accumulation, optimizers
        self.overflow_at = overflow_at
        self.kept: list[Any] = []
        self.counts: list[int] = []
        """Lightning's count after each batch."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        layers = [self.net] if self.number == 1 else [self.net[0], self.net[2]]
        return [torch.optim.AdamW(layer.parameters(), lr=0.01, fused=True) for layer in layers]

    def loss_of(self, model: torch.nn.Module, batch: Any) -> Tensor:
        loss = trainers.loss_of(model, batch)
        return loss * torch.inf if len(self.counts) == self.overflow_at else loss

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.kept.append(batch)
        if len(self.kept) == self.accumulation:
            self.update()
            self.kept = []
        self.counts.append(self.trainer.global_step)

    def update(self) -> None:
        optimizers: Any = self.optimizers()
        for optimizer in optimizers if self.number > 1 else [optimizers]:
            for batch in self.kept:
                self.manual_backward(self.loss_of(self.net, batch) / self.accumulation)
            optimizer.step()
            optimizer.zero_grad()


class ByStep(ByHand):
    """One `TrainStep` over all optimizers, or one per optimizer; some batches raise an error."""

    def __init__(
        self, *args: Any, together: bool = True, errors_at: Collection[int] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.together, self.errors_at = together, errors_at

    def on_fit_start(self) -> None:
        optimizers: Any = self.optimizers()
        precision: Any = "fp32" if self.overflow_at is None else "fp16"
        self.steps = [
            TrainStep(self.net, part, self.loss_of, CURVE, precision=precision)
            for part in ([optimizers] if self.together else optimizers)
        ]

    def loss_of(self, model: torch.nn.Module, batch: Any) -> Tensor:
        if len(self.counts) in self.errors_at:
            raise ArithmeticError
        return super().loss_of(model, batch)

    def update(self) -> None:
        for step in self.steps:
            with suppress(ArithmeticError):
                step(*self.kept)


def fit(module: ByHand, every: int = 2, **options: Any) -> tuple[list[str], int, list[int]]:
    """Train a module; return its checkpoints, Lightning's count at the end and after each batch."""
    with TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=every, save_top_k=-1
        )
        trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=20,  # the test fails, rather than runs forever, if nothing is counted
            callbacks=[checkpoint],
            **options,
        )
        trainer.fit(module, make_loader(trainers.dataset(40), 8, num_workers=0))
        return sorted(os.listdir(folder)), trainer.global_step, module.counts


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=8)
def test_run_ends_and_saves_like_manual_loop(accumulation: int, steps: int, every: int) -> None:
    module = ByStep(accumulation)
    by_step = fit(module, every, max_steps=steps)
    assert by_step == fit(ByHand(accumulation), every, max_steps=steps)
    assert by_step[1] == module.steps[0].state_dict()["applied"] == steps


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")
def test_skipped_fp16_update_counts() -> None:
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    module = ByStep(overflow_at=2)
    assert fit(module, max_steps=6) == fit(ByHand(overflow_at=2), max_steps=6, plugins=[plugin])
    state = module.steps[0].state_dict()
    assert state["skipped"] > 0
    assert state["applied"] + state["skipped"] == 6


def test_update_of_several_optimizers_counts_once() -> None:
    assert fit(ByStep(optimizers=2), max_steps=6) == fit(ByHand(), max_steps=6)
    apart = fit(ByStep(optimizers=2, together=False), max_steps=6)
    assert apart == fit(ByHand(optimizers=2), max_steps=6)


def test_failed_update_does_not_count() -> None:
    """Nor does it start an action in Lightning's profiler, which rejects to start one twice."""
    profiler: Any = SimpleProfiler()
    module = ByStep(errors_at=(1, 3))
    _, updates, counts = fit(module, max_steps=4, profiler=profiler)
    assert counts == [1, 1, 2, 2, 3, 4]
    assert len(profiler.recorded_durations["optimizer_step"]) == updates == 4
    module.steps[0](trainers.dataset(8).tensors)  # without the trainer
    assert module.steps[0].state_dict()["applied"] == 5
