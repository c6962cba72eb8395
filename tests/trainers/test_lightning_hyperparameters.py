"""A LightningModule whose hyperparameters include a curve and a clock.

Lightning saves them in each checkpoint, and in the log, and reads checkpoints without running code.
"""

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner.tuning import Tuner
from support.trainers.trainers import LIGHTNING_WARNING
from torch.utils.data import DataLoader, TensorDataset

from plateau_jax import BatchPlan, DataClock, PlateauCurve, StagedCurve
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    # The finders train a few updates with other settings.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]

PEAK = 0.5
CLOCK = DataClock(20, count=20)
"""With the samples of one step of the curve in each update."""


class StoringRegression(lightning.LightningModule):
    """A module that stores its arguments, as Lightning's manual does."""

    def __init__(self, curve, clock, lr=PEAK, batch_size=16):
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
        dataset = TensorDataset(torch.ones(160, 8))
        return DataLoader(dataset, self.hparams["batch_size"])

    def configure_optimizers(self):
        hparams = self.hparams
        optimizer = torch.optim.SGD(self.parameters(), lr=hparams["lr"])
        scheduler = lambda_lr(optimizer, hparams["curve"], clock=hparams["clock"])
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


def assert_resumes_and_loads(curve, lrs, folder):
    """Train ten updates, read the checkpoint as a module, and train ten more, with these `lrs`."""
    saved = StoringRegression(curve, CLOCK)
    trainer = trainer_of(10, folder)
    trainer.fit(saved)
    checkpoint = folder / "saved.ckpt"
    trainer.save_checkpoint(checkpoint)
    assert (folder / "lightning_logs" / "version_0" / "hparams.yaml").exists()

    loaded = StoringRegression.load_from_checkpoint(checkpoint)
    assert loaded.hparams["curve"] == curve
    assert loaded.hparams["clock"] == CLOCK
    resumed = StoringRegression(curve, CLOCK)
    trainer = trainer_of(20, folder)
    trainer.fit(resumed, ckpt_path=checkpoint)
    assert resumed.lrs == lrs


PLATEAU = PlateauCurve(40, warmup_steps=5)
PLAN = BatchPlan([(0, 4), (400, 8)])
CURVES = [
    StagedCurve.wsd(40, warmup_steps="10%", decay_steps="20%"),
    PLAN.scale(PLATEAU.then(PLATEAU), 20, reference=16),
]


def name_of_class(curve):
    return type(curve).__name__


@pytest.mark.parametrize("curve", CURVES, ids=name_of_class)
def test_run_under_a_curve_resumes_and_is_loaded(curve, tmp_path):
    lrs = [curve.learning_rate(step, PEAK) for step in range(10, 20)]
    assert_resumes_and_loads(curve, lrs, tmp_path)


def test_finders_restore_their_checkpoint(tmp_path):
    model = StoringRegression(PLATEAU, CLOCK)
    tuner = Tuner(trainer_of(40, tmp_path))
    assert tuner.lr_find(model, num_training=20) is not None
    batch_size = tuner.scale_batch_size(model, max_trials=2, steps_per_trial=2, init_val=2)
    assert batch_size == 4
    assert model.hparams["curve"] == PLATEAU
