"""A LightningModule whose hyperparameters include a curve and a clock.

Lightning saves them in each checkpoint, and in the log, and reads checkpoints without running code.
"""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner.tuning import Tuner
from support.trainers.trainers import LIGHTNING_WARNING

from plateau_jax import BatchPlan, Curve, DataClock, PlateauCurve, StagedCurve
from plateau_jax.clocks.clock import AnyClock
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    # The finders train a few updates with other settings.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]

PEAK = 0.5
BASE = PlateauCurve(40, warmup_steps=5)
CURVES: list[Any] = [
    BASE,
    StagedCurve.wsd(40, warmup_steps="10%", decay_steps="20%"),
    BASE.cooldown(20, 10),
    BatchPlan([(0, 4), (400, 8)]).scale(BASE.then(BASE), 20, reference=16),
    {"kind": "wsd", "total_steps": 40, "warmup_steps": 5, "decay_steps": "20%"},
]


class Regression(lightning.LightningModule):
    """A module that stores its arguments, as Lightning's manual does."""

    def __init__(self, curve: Any, clock: AnyClock, lr: float = PEAK, batch_size: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(8, 1)
        self.lrs: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.lrs.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.net(batch[0]).square().mean()

    def train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        dataset = torch.utils.data.TensorDataset(torch.ones(160, 8))
        return torch.utils.data.DataLoader(dataset, self.hparams["batch_size"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])
        scheduler = lambda_lr(optimizer, self.hparams["curve"], clock=self.hparams["clock"])
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def _trainer(folder: Path, updates: int) -> lightning.Trainer:
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
def only_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Lightning read their own checkpoints with weights_only=False by default."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
def test_run_resumes_and_module_is_loaded(curve: Any, tmp_path: Path) -> None:
    clock = DataClock(20, count=20)
    built = curve
    if isinstance(curve, dict):
        built = Curve.from_dict(curve)
    trainer = _trainer(tmp_path, 10)
    trainer.fit(Regression(curve, clock))
    path = tmp_path / "saved.ckpt"
    trainer.save_checkpoint(path)

    loaded = Regression.load_from_checkpoint(path)
    assert (loaded.hparams["curve"], loaded.hparams["clock"]) == (curve, clock)
    resumed = Regression(curve, clock)
    _trainer(tmp_path, 20).fit(resumed, ckpt_path=path)
    assert resumed.lrs == [built.learning_rate(step, PEAK) for step in range(10, 20)]
    assert (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").exists()


def test_finders_restore_their_checkpoint(tmp_path: Path) -> None:
    model = Regression(BASE, DataClock(20, count=20))
    tuner = Tuner(_trainer(tmp_path, 40))
    found = tuner.lr_find(model, num_training=20)
    assert found is not None
    assert tuner.scale_batch_size(model, max_trials=2, steps_per_trial=2, init_val=2) == 4
    assert model.hparams["curve"] == BASE
