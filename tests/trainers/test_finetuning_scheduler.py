"""FinetuningScheduler unfreezes a module in phases: it adds groups and edits the scheduler.

Without the package, of `.[libraries]`, these tests are skipped.
"""

import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from packaging.version import Version
from support.trainers.trainers import FOLDER_WARNING, LIGHTNING_WARNING
from support.training.steps import equal_trees
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

library = pytest.importorskip("finetuning_scheduler")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(LIGHTNING_WARNING),
    pytest.mark.filterwarnings(FOLDER_WARNING),
    # The end of the last phase is required, and is that of the run.
    pytest.mark.filterwarnings("ignore:Final phase max_transition_epoch:UserWarning"),
]

CURVE = PlateauCurve(24, warmup_steps=4, min_lr_ratio=0.1)
SCHEDULE: dict[int, dict[str, Any]] = {
    0: {"params": ["head.weight", "head.bias"], "max_transition_epoch": 2},
    1: {"params": ["body.weight", "body.bias"], "lr": 0.05, "max_transition_epoch": 4},
    2: {"params": ["stem.weight", "stem.bias"], "lr": 0.02, "max_transition_epoch": 6},
}
"""Unfreezes two layers, after two and four epochs of four updates; the curve has six epochs."""


def function_of_the_curve(optimizer: Any, curve: PlateauCurve) -> LambdaLR:
    """Return torch's scheduler. Unlike for a curve, its state has no entry for a function."""
    return LambdaLR(optimizer, lambda step: curve(step))


class Net(lightning.LightningModule):
    """Its optimizer has the trained parameters, or all: then the callback replaces the groups."""

    def __init__(self, build: Any, *, optimizes_all: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.build = build
        self.optimizes_all = optimizes_all
        self.stem = nn.Linear(4, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.lrs: list[list[float]] = []
        """The learning rates of each update."""

    def loss_of(self, inputs: Tensor) -> Tensor:
        prediction = self.head(self.body(self.stem(inputs)).tanh())
        return (prediction - inputs.sum(1, keepdim=True)).square().mean()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.loss_of(batch[0])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_loss", self.loss_of(batch[0]))

    def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any = None) -> None:
        super().optimizer_step(epoch, index, optimizer, closure)
        self.lrs.append([float(group["lr"]) for group in optimizer.param_groups])

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        if not self.optimizes_all:
            parameters = [parameter for parameter in parameters if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        return [optimizer], [{"scheduler": self.build(optimizer, CURVE), "interval": "step"}]


class Interrupt(lightning.Callback):
    def __init__(self, at_epoch: int | None) -> None:
        self.at_epoch = at_epoch

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.current_epoch == self.at_epoch:
            raise InterruptedError


def fit(module: Net, folder: Path, *, interrupted_at: int | None = None, **options: Any) -> Net:
    """Train through all phases, or continue from `ckpt_path`; return the module."""
    loader: Any = DataLoader(TensorDataset(torch.linspace(-1, 1, 128).reshape(32, 4)), batch_size=8)
    phases = library.FinetuningScheduler(
        ft_schedule={depth: dict(phase) for depth, phase in SCHEDULE.items()},
        epoch_transitions_only=True,
        apply_lambdas_new_pgs=True,
        logging_level=logging.ERROR,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        max_epochs=6,
        callbacks=[
            Interrupt(interrupted_at),
            phases,
            library.FTSCheckpoint(dirpath=folder, monitor="val_loss", save_last=True),
        ],
    )
    try:
        trainer.fit(module, loader, loader, **options)
    except InterruptedError:
        assert interrupted_at is not None
    return module


@pytest.mark.parametrize("optimizes_all", [False, True])
def test_phases_have_the_learning_rates_of_lambda_lr(optimizes_all: bool, tmp_path: Path) -> None:
    reference = fit(Net(function_of_the_curve, optimizes_all=optimizes_all), tmp_path / "torch")
    module = fit(Net(lambda_lr, optimizes_all=optimizes_all), tmp_path / "curve")
    assert [len(lrs) for lrs in module.lrs] == [1] * 8 + [2] * 8 + [3] * 8
    for lrs, expected in zip(module.lrs, reference.lrs, strict=True):
        np.testing.assert_array_max_ulp(np.float32(lrs), np.float32(expected), 1)


@pytest.mark.skipif(
    Version(metadata.version("finetuning-scheduler")) < Version("2.14"),
    reason="older versions add the groups again when they resume, under torch's LambdaLR too",
)
@pytest.mark.parametrize("optimizes_all", [False, True])
def test_phases_resume(optimizes_all: bool, tmp_path: Path) -> None:
    """Between the two unfreezings."""
    uninterrupted = fit(Net(lambda_lr, optimizes_all=optimizes_all), tmp_path / "uninterrupted")
    folder = tmp_path / "interrupted"
    before = fit(Net(lambda_lr, optimizes_all=optimizes_all), folder, interrupted_at=3)
    after = Net(lambda_lr, optimizes_all=optimizes_all)
    fit(after, folder, ckpt_path=folder / "last.ckpt", weights_only=False)
    assert before.lrs + after.lrs == uninterrupted.lrs
    assert equal_trees(list(after.parameters()), list(uninterrupted.parameters()))
