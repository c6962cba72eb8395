"""PyTorch Lightning, configured as on the page: bf16, accumulation, clipping, resuming."""

from functools import partial
from pathlib import Path
from unittest.mock import patch

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from support.trainers import trainers
from support.trainers.trainers import (
    FOLDER_WARNING,
    LIGHTNING_WARNING,
    PAGE_PEAK,
    record_lrs,
    same_weights,
    train,
)

from plateau_jax import PlateauCurve
from torch_bridge import make_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    pytest.mark.filterwarnings(FOLDER_WARNING),
]

HEADING = "PyTorch Lightning"
EPOCHS, UPDATES = 3, 12  # an epoch has 7 batches: three updates of two, and one of the last
CURVE = PlateauCurve(UPDATES, warmup_steps=UPDATES // 10, plateaus=[(0, 60)])

expected_lrs = partial(trainers.expected_lrs, peak=PAGE_PEAK)


@pytest.fixture(scope="module", autouse=True)
def optimizers_of_page(tmp_path_factory):
    """Configure the optimizers of the tests' modules as on the page."""
    names = train(HEADING, tmp_path_factory.mktemp("page"), changes={"trainer.fit(": "print("}).names
    with patch.object(Module, "configure_optimizers", names["Regression"].configure_optimizers):
        yield


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.batches = trainers.net(), []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch[0].tolist())
        return trainers.loss_of(self.net, batch)


def fit(module: Module, folder: Path, resume_from: Path | None = None, **options):
    """Train a module; return the learning rates of its updates, and the trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            LearningRateMonitor(),
            # A resumed run uses the folder of the first one.
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1),
        ],
        **options,
    )
    loader = make_loader(trainers.dataset(56), 8, num_workers=0)
    with record_lrs() as used:
        trainer.fit(module, loader, ckpt_path=resume_from)
    return used, trainer


def test_resume_in_mid_epoch_matches_uninterrupted_run(tmp_path):
    uninterrupted, resumed = Module(), Module()
    used, trainer = fit(uninterrupted, tmp_path, max_steps=UPDATES, precision="bf16-mixed")
    assert trainer.global_step == UPDATES
    assert used == expected_lrs(CURVE, range(UPDATES))

    # The monitor logs the learning rate at the start of every batch.
    logged = np.genfromtxt(tmp_path / "lightning_logs/version_0/metrics.csv", names=True, delimiter=",")
    assert len(logged) == 7 * EPOCHS
    assert set(zip(logged["step"], logged["lrAdamW"], strict=True)) == {
        (step, rate) for step, (rate,) in enumerate(used)
    }

    used, trainer = fit(
        resumed, tmp_path, tmp_path / "step=6.ckpt", max_steps=UPDATES, precision="bf16-mixed"
    )
    assert trainer.global_step == UPDATES
    assert used == expected_lrs(CURVE, range(6, UPDATES))
    assert same_weights(resumed, uninterrupted)


def test_resume_by_epochs_loses_the_loader_position(tmp_path):
    """Lightning-AI/pytorch-lightning#20550: if this fails, it is fixed: remove the page's warning."""
    uninterrupted, resumed = Module(), Module()
    used, _ = fit(uninterrupted, tmp_path, max_epochs=EPOCHS)
    assert used == expected_lrs(CURVE, range(UPDATES))
    used, _ = fit(resumed, tmp_path, tmp_path / "step=6.ckpt", max_epochs=EPOCHS)
    assert used == expected_lrs(CURVE, range(6, UPDATES))
    assert resumed.batches[0] == uninterrupted.batches[0]


class Overflowing(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (torch.inf if self.global_step == 4 else 1)


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU")
def test_skipped_fp16_update_moves_the_curve(tmp_path):
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    used, _ = fit(Overflowing(), tmp_path, max_steps=UPDATES, plugins=[precision])
    assert used == [*expected_lrs(CURVE, range(4)), *expected_lrs(CURVE, range(5, UPDATES))]
