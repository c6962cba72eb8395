"""FinetuningScheduler unfreezes a module in phases: it adds groups and edits the scheduler.

Without the package, of `.[libraries]`, these tests are skipped.
"""

import logging
from importlib import metadata

import lightning
import numpy as np
import pytest
import torch
from packaging.version import Version
from support.trainers.trainers import resumes_in_its_folder
from support.trees import equal_trees
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

library = pytest.importorskip("finetuning_scheduler")

pytestmark = [
    pytest.mark.slow,
    resumes_in_its_folder,
    # The end of the last phase is required, and is that of the run.
    pytest.mark.filterwarnings("ignore:Final phase max_transition_epoch:UserWarning"),
]

EPOCHS = 6
UPDATES_OF_EPOCH = 4
CURVE = PlateauCurve(EPOCHS * UPDATES_OF_EPOCH, warmup_steps=4, min_lr_ratio=0.1)


def phases():
    """Unfreeze one more layer after two epochs, and one more after four."""
    return {
        0: {
            "params": ["head.weight", "head.bias"],
            "max_transition_epoch": 2,
        },
        1: {
            "params": ["body.weight", "body.bias"],
            "lr": 0.05,
            "max_transition_epoch": 4,
        },
        2: {
            "params": ["stem.weight", "stem.bias"],
            "lr": 0.02,
            "max_transition_epoch": EPOCHS,
        },
    }


def lambda_lr_of_torch(optimizer, curve):
    """Return torch's scheduler. Unlike for a curve, its state has no entry for a function."""
    return LambdaLR(optimizer, lambda step: curve(step))


class ThreeLayers(lightning.LightningModule):
    """Three layers.

    Args:
        build_scheduler: `lambda_lr`, or the same for torch's `LambdaLR`.
        optimizes_all: Does the optimizer get all parameters, rather than only those of the first
            phase? Then the callback replaces its groups.
    """

    def __init__(self, build_scheduler, *, optimizes_all):
        super().__init__()
        torch.manual_seed(0)
        self.build_scheduler = build_scheduler
        self.optimizes_all = optimizes_all
        self.stem = nn.Linear(4, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.lrs = []
        """The learning rates of each update."""

    def loss_of(self, inputs):
        hidden = self.body(self.stem(inputs)).tanh()
        targets = inputs.sum(1, keepdim=True)
        return (self.head(hidden) - targets).square().mean()

    def training_step(self, batch, index):
        (inputs,) = batch
        return self.loss_of(inputs)

    def validation_step(self, batch, index):
        (inputs,) = batch
        self.log("val_loss", self.loss_of(inputs))

    def optimizer_step(self, epoch, index, optimizer, closure=None):
        super().optimizer_step(epoch, index, optimizer, closure)
        self.lrs.append([float(group["lr"]) for group in optimizer.param_groups])

    def configure_optimizers(self):
        parameters = list(self.parameters())
        if not self.optimizes_all:
            parameters = [parameter for parameter in parameters if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        scheduler = self.build_scheduler(optimizer, CURVE)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class InterruptBeforeEpoch(lightning.Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch:
            raise InterruptedError


def fit(module, folder, *callbacks, **options):
    """Train through all phases, or continue from `ckpt_path`; each epoch saves `last.ckpt`."""
    inputs = torch.linspace(-1, 1, 128).reshape(32, 4)
    loader = DataLoader(TensorDataset(inputs), batch_size=32 // UPDATES_OF_EPOCH)
    unfreezes = library.FinetuningScheduler(
        ft_schedule=phases(),
        epoch_transitions_only=True,
        apply_lambdas_new_pgs=True,
        logging_level=logging.ERROR,
    )
    saves = library.FTSCheckpoint(dirpath=folder, monitor="val_loss", save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=EPOCHS,
        callbacks=[*callbacks, unfreezes, saves],
    )
    trainer.fit(module, loader, loader, **options)


@pytest.mark.parametrize("optimizes_all", [False, True])
def test_phases_have_the_learning_rates_of_torch(optimizes_all, tmp_path):
    module = ThreeLayers(lambda_lr, optimizes_all=optimizes_all)
    fit(module, tmp_path / "curve")
    reference = ThreeLayers(lambda_lr_of_torch, optimizes_all=optimizes_all)
    fit(reference, tmp_path / "torch")
    assert [len(lrs) for lrs in module.lrs] == [1] * 8 + [2] * 8 + [3] * 8
    for lrs, expected in zip(module.lrs, reference.lrs, strict=True):
        np.testing.assert_array_max_ulp(np.float32(lrs), np.float32(expected), 1)


@pytest.mark.skipif(
    Version(metadata.version("finetuning-scheduler")) < Version("2.14"),
    reason="older versions add the groups again when they resume, under torch's LambdaLR too",
)
@pytest.mark.parametrize("optimizes_all", [False, True])
def test_phases_resume(optimizes_all, tmp_path):
    """The run is interrupted between the two unfreezings."""
    uninterrupted = ThreeLayers(lambda_lr, optimizes_all=optimizes_all)
    fit(uninterrupted, tmp_path / "uninterrupted")

    folder = tmp_path / "interrupted"
    interrupted = ThreeLayers(lambda_lr, optimizes_all=optimizes_all)
    with pytest.raises(InterruptedError):
        fit(interrupted, folder, InterruptBeforeEpoch(3))
    resumed = ThreeLayers(lambda_lr, optimizes_all=optimizes_all)
    fit(resumed, folder, ckpt_path=folder / "last.ckpt", weights_only=False)
    assert interrupted.lrs + resumed.lrs == uninterrupted.lrs
    assert equal_trees(list(resumed.parameters()), list(uninterrupted.parameters()))
