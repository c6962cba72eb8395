"""With manual optimization, Lightning counts the updates of a `TrainStep` as its own.

Where the run ends, and which checkpoints it saves, depends on this count.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import lightning
import pytest
import torch
from hypothesis import given, settings, strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.profilers import SimpleProfiler
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from trainers.runs import LIGHTNING_WARNING

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, make_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    # With manual optimization, Lightning warns that checkpoints are saved after the update.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning"),
]


CURVE = PlateauCurve(12, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)


def dataset(rows):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 4, generator=generator)
    targets = torch.randn(rows, 1, generator=generator)
    return TensorDataset(inputs, targets)


class Regression(lightning.LightningModule):
    """Makes an update of every `accumulation` batches.

    Args:
        accumulation: The number of batches of an update.
        optimizers: One for the whole model, or two, each for a layer.
        overflow_at: The batch whose loss is infinite, in fp16.
        errors_at: The batches whose loss raises an error. The run continues.
    """

    step: TrainStep

    def __init__(self, accumulation=1, optimizers=1, overflow_at=None, errors_at=()):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        self.accumulation = accumulation
        self.has_two_optimizers = optimizers == 2
        self.overflow_at = overflow_at
        self.errors_at = errors_at
        self.batches = []
        """Those of the next update."""
        self.counts = []
        """Lightning's count after each batch."""

    def configure_optimizers(self):
        layers = [self.net[0], self.net[2]] if self.has_two_optimizers else [self.net]
        return [AdamW(layer.parameters(), lr=0.01, fused=True) for layer in layers]

    def on_fit_start(self):
        precision = "fp32" if self.overflow_at is None else "fp16"
        optimizers = self.optimizers()
        self.step = TrainStep(self.net, optimizers, self.loss_of, CURVE, precision=precision)

    def loss_of(self, model, batch):
        if len(self.counts) in self.errors_at:
            raise ArithmeticError
        inputs, targets = batch
        loss = ((model(inputs) - targets) ** 2).mean()
        if len(self.counts) == self.overflow_at:
            loss = loss * torch.inf
        return loss

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        if len(self.batches) == self.accumulation:
            with suppress(ArithmeticError):
                self.step(*self.batches)
            self.batches = []
        self.counts.append(self.trainer.global_step)


@dataclass(frozen=True)
class Fit:
    """What depends on Lightning's count of updates."""

    checkpoints: list[str]
    updates: int
    """Lightning's count at the end."""
    counts: list[int]
    """Lightning's count after each batch."""


def fit(module, save_every=2, **options):
    """Train a module on batches of 8 rows."""
    with TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=save_every, save_top_k=-1
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
        trainer.fit(module, make_loader(dataset(40), 8, num_workers=0))
        return Fit(sorted(os.listdir(folder)), trainer.global_step, module.counts)


def expected_fit(updates, accumulation=1, save_every=2):
    """Return the fit of a run in which each update counts once."""
    saved = range(save_every, updates + 1, save_every)
    batches = range(1, updates * accumulation + 1)
    return Fit(
        checkpoints=[f"step={count}.ckpt" for count in saved],
        updates=updates,
        counts=[batch // accumulation for batch in batches],
    )


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=8)
def test_run_ends_and_saves_after_its_updates(accumulation, updates, save_every):
    module = Regression(accumulation)
    run = fit(module, save_every, max_steps=updates)
    assert run == expected_fit(updates, accumulation, save_every)
    assert module.step.state_dict()["applied"] == updates


def test_skipped_fp16_update_counts():
    module = Regression(overflow_at=2)
    assert fit(module, max_steps=6) == expected_fit(6)
    state = module.step.state_dict()
    assert state["skipped"] > 0
    assert state["applied"] + state["skipped"] == 6


def test_update_of_several_optimizers_counts_once():
    assert fit(Regression(optimizers=2), max_steps=6) == expected_fit(6)


def test_failed_update_does_not_count():
    """Nor does it start an action in Lightning's profiler, which rejects to start one twice."""
    profiler = SimpleProfiler()
    module = Regression(errors_at=(1, 3))
    run = fit(module, max_steps=4, profiler=profiler)
    assert run.counts == [1, 1, 2, 2, 3, 4]
    assert run.updates == 4
    assert len(profiler.recorded_durations["optimizer_step"]) == 4
    module.step(dataset(8).tensors)  # without the trainer
    assert module.step.state_dict()["applied"] == 5
