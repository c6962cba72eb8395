"""A LightningModule whose hyperparameters include the arguments of a curve.

Lightning saves them in each checkpoint, and in the log, and reads checkpoints without running code.
"""

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from trainers.runs import LIGHTNING_WARNING

from plateau_jax import Curve, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(LIGHTNING_WARNING)]

PEAK = 0.5


class StoringRegression(lightning.LightningModule):
    """A module that stores its arguments, as Lightning's manual does."""

    def __init__(self, curve):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(8, 1)
        self.lrs = []

    def training_step(self, batch, batch_idx):
        (inputs,) = batch
        (optimizer,) = self.trainer.optimizers
        (group,) = optimizer.param_groups
        self.lrs.append(group["lr"])
        return self.net(inputs).square().mean()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(160, 8)), 16)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=PEAK)
        scheduler = lambda_lr(optimizer, self.hparams["curve"])
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def trainer_of(updates, folder):
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=updates,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@pytest.fixture(autouse=True)
def only_weights(monkeypatch):
    """Some versions of Lightning read their own checkpoints with weights_only=False by default."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")


def test_run_under_a_curve_resumes_and_is_loaded(tmp_path):
    """Train ten updates, read the checkpoint as a module, and train ten more."""
    curve = StagedCurve.wsd(40, warmup_steps="10%", decay_steps="20%")
    saved = StoringRegression(curve.to_dict())
    trainer = trainer_of(10, tmp_path)
    trainer.fit(saved)
    checkpoint = tmp_path / "saved.ckpt"
    trainer.save_checkpoint(checkpoint)
    assert (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").exists()

    loaded = StoringRegression.load_from_checkpoint(checkpoint)
    assert Curve.from_dict(loaded.hparams["curve"]) == curve
    resumed = StoringRegression(curve.to_dict())
    trainer_of(20, tmp_path).fit(resumed, ckpt_path=checkpoint)
    assert resumed.lrs == [curve.learning_rate(step, PEAK) for step in range(10, 20)]
