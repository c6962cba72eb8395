"""PyTorch Lightning with manual optimization counts the updates of a `TrainStep` like those of its own loop.

That loop, written as in Lightning's manual, calls the optimizer's `step` after some backward passes over the
same batches. The tests compare everything that depends on Lightning's count: where the run ends, and which
checkpoints it saves.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
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
from support.trainers.trainers import LIGHTNING_WARNING, same_weights
from torch import Tensor

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, make_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    # With manual optimization, Lightning warns that checkpoints are saved after the update.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning"),
    # Lightning warns about checkpoints from another folder.
    pytest.mark.filterwarnings("ignore:The dirpath has changed from:UserWarning"),
]

CURVE = PlateauCurve(40, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
BATCHES = 5  # in an epoch


class Module(lightning.LightningModule):
    """A module that makes an update of every `accumulation` batches."""

    def __init__(self, accumulation: int = 1, optimizers: int = 1, overflow_at: int | None = None) -> None:
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
            self.update(self.kept)
            self.kept = []
        self.counts.append(self.trainer.global_step)

    def update(self, batches: Sequence[Any]) -> None:
        raise NotImplementedError


class ByHand(Module):
    """A loop as in Lightning's manual. Lightning counts the steps of each optimizer."""

    def update(self, batches: Sequence[Any]) -> None:
        optimizers: Any = self.optimizers()
        for optimizer in optimizers if self.number > 1 else [optimizers]:
            for batch in batches:
                self.manual_backward(self.loss_of(self.net, batch) / len(batches))
            optimizer.step()
            optimizer.zero_grad()


class ByStep(Module):
    """One `TrainStep` over all optimizers, or one per optimizer."""

    def __init__(self, *args: Any, together: bool = True, precision: Any = "fp32", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.together, self.precision = together, precision
        self.saved: list[Any] = []

    def on_fit_start(self) -> None:
        optimizers: Any = self.optimizers()
        parts = [optimizers] if self.together else optimizers
        self.steps = [
            TrainStep(self.net, part, self.loss_of, CURVE, precision=self.precision) for part in parts
        ]
        for step, state in zip(self.steps, self.saved, strict=False):
            step.load_state_dict(state)

    def update(self, batches: Sequence[Any]) -> None:
        for step in self.steps:
            step(*batches)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["steps"] = [step.state_dict() for step in self.steps]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["steps"]


def fit(module: Module, folder: str | Path, every: int = 2, resume_from: Path | None = None, **options: Any):
    """Train a module; return the names of its checkpoints, and the trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=20,  # so that the test fails, rather than runs forever, if nothing is counted
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)],
        **options,
    )
    loader = make_loader(trainers.dataset(8 * BATCHES), 8, num_workers=0)
    trainer.fit(module, loader, ckpt_path=resume_from)
    return sorted(path.name for path in Path(folder).iterdir()), trainer


def count_updates(*modules: Module, **options: Any) -> list[tuple[list[str], int, list[int]]]:
    """Train each module; return its checkpoints, its final count, and its count after each batch."""
    results: list[tuple[list[str], int, list[int]]] = []
    for module in modules:
        with TemporaryDirectory() as folder:
            names, trainer = fit(module, folder, **options)
        results.append((names, trainer.global_step, module.counts))
    return results


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=8)
def test_run_ends_and_saves_like_manual_loop(accumulation: int, steps: int, every: int) -> None:
    module = ByStep(accumulation)
    by_hand, by_step = count_updates(ByHand(accumulation), module, max_steps=steps, every=every)
    assert by_step == by_hand
    assert by_step[1] == steps
    assert module.steps[0].state_dict()["applied"] == steps


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")
def test_skipped_fp16_update_counts() -> None:
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    (by_hand,) = count_updates(ByHand(overflow_at=2), max_steps=6, plugins=[plugin])
    module = ByStep(overflow_at=2, precision="fp16")
    (by_step,) = count_updates(module, max_steps=6)
    assert by_step == by_hand
    state = module.steps[0].state_dict()
    assert state["skipped"] > 0
    assert state["applied"] + state["skipped"] == 6


def test_update_of_several_optimizers_counts_once() -> None:
    once, together, apart, by_hand = count_updates(
        ByHand(),
        ByStep(optimizers=2),
        ByStep(optimizers=2, together=False),
        ByHand(optimizers=2),
        max_steps=6,
    )
    assert together == once
    assert apart == by_hand


@given(st.data())
@settings(max_examples=4)
def test_resume_matches_manual_loop(data: st.DataObject) -> None:
    accumulation, steps = data.draw(st.integers(1, 2)), data.draw(st.integers(3, 6))
    at = data.draw(st.integers(1, steps - 1))
    modules = ByHand(accumulation), ByHand(accumulation), ByStep(accumulation), ByStep(accumulation)
    results: list[Any] = []
    for first, second in (modules[:2], modules[2:]):
        with TemporaryDirectory() as folder, TemporaryDirectory() as other:
            fit(first, folder, every=1, max_steps=steps)
            names, trainer = fit(second, other, 1, Path(folder, f"step={at}.ckpt"), max_steps=steps)
        results.append((names, trainer.global_step, second.counts))
    by_hand, by_step = results
    assert by_step == by_hand
    *_, uninterrupted, resumed = modules
    assert resumed.counts == uninterrupted.counts[at * accumulation :]
    assert resumed.steps[0].state_dict()["applied"] == steps
    assert same_weights(resumed, uninterrupted)


class Interrupted(ByStep):
    """A module whose loss raises an error now and then, which `update` suppresses."""

    def loss_of(self, model: torch.nn.Module, batch: Any) -> Tensor:
        if len(self.counts) in (1, 3):
            raise ArithmeticError
        return super().loss_of(model, batch)

    def update(self, batches: Sequence[Any]) -> None:
        with suppress(ArithmeticError):
            super().update(batches)


def test_failed_update_does_not_count(tmp_path: Path) -> None:
    """Nor does it start an action in Lightning's profiler, which rejects to start one twice."""
    profiler = SimpleProfiler()
    module = Interrupted()
    _, trainer = fit(module, tmp_path, max_steps=4, profiler=profiler)
    assert module.counts == [1, 1, 2, 2, 3, 4]
    assert len(profiler.recorded_durations["optimizer_step"]) == trainer.global_step == 4


def test_step_runs_without_the_trainer(tmp_path: Path) -> None:
    """After `fit`, a step works like Lightning's optimizer itself."""
    module = ByStep()
    _, trainer = fit(module, tmp_path, max_steps=2)
    module.steps[0](trainers.dataset(8).tensors)
    assert module.steps[0].state_dict()["applied"] == 3
    assert trainer.global_step == 2
