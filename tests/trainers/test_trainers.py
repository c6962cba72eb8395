"""Lightning and Hugging Face's Trainer, configured as on the pages, resume in mid-epoch."""

import re
import sys
from dataclasses import replace

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from support.docs.pages import PAGES, sections
from support.trainers import trainers
from support.trainers.trainers import (
    CURVE,
    FOLDER_WARNING,
    LIGHTNING_WARNING,
    PAGE_CURVE,
    PAGE_PEAK,
    PEAK,
    expected_lrs,
    record_lrs,
    same_weights,
    train,
)
from support.training.trees import through_file
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LambdaLR
from torch.optim.swa_utils import SWALR
from transformers import Trainer, TrainingArguments

from plateau_jax import PlateauCurve, StagedCurve
from torch_bridge import lambda_lr, make_loader

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(LIGHTNING_WARNING, FOLDER_WARNING)]

UPDATES = 12


class Module(lightning.LightningModule):
    """Lightning's epoch has 7 batches: three updates of two, and one of the last."""

    configure_optimizers = None  # replaced by the page's

    def __init__(self):
        super().__init__()
        self.net = trainers.net()

    def training_step(self, batch, batch_idx):
        return trainers.loss_of(self.net, batch)


def fit_lightning(folder, resume_from=None):
    """Train in bf16; return the module and the learning rates of its updates."""
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
        max_steps=UPDATES,
        precision="bf16-mixed",
    )
    module, loader = Module(), make_loader(trainers.dataset(56), 8, num_workers=0)
    with record_lrs() as used:
        trainer.fit(module, loader, ckpt_path=resume_from)
    assert trainer.global_step == UPDATES
    return module, used


def test_lightning_resumes_in_mid_epoch(tmp_path, monkeypatch):
    (tmp_path / "page").mkdir()
    names = train("PyTorch Lightning", tmp_path / "page", changes={"trainer.fit(": "print("}).names
    monkeypatch.setattr(Module, "configure_optimizers", names["Regression"].configure_optimizers)
    curve = PlateauCurve(UPDATES, warmup_steps=UPDATES // 10, plateaus=[(0, 60)])
    uninterrupted, used = fit_lightning(tmp_path)
    assert used == expected_lrs(curve, range(UPDATES), PAGE_PEAK)

    # The monitor logs the learning rate at the start of every batch.
    logged = np.genfromtxt(tmp_path / "lightning_logs/version_0/metrics.csv", names=True, delimiter=",")
    assert len(logged) == 7 * 3
    assert set(zip(logged["step"], logged["lrAdamW"], strict=True)) == {
        (step, lr) for step, (lr,) in enumerate(used)
    }

    resumed, used = fit_lightning(tmp_path, tmp_path / "step=6.ckpt")
    assert used == expected_lrs(curve, range(6, UPDATES), PAGE_PEAK)
    assert same_weights(resumed, uninterrupted)


class Net(nn.Module):
    """The Trainer's epoch has 14 batches: three updates of four, and one of the last two."""

    def __init__(self):
        super().__init__()
        self.net, self.calls, self.overflow_at = trainers.net(), 0, 0

    def forward(self, inputs, labels):
        loss = trainers.loss_of(self.net, (inputs, labels))
        self.calls += 1
        return {"loss": loss * torch.inf if self.calls == self.overflow_at else loss}


def arguments(folder, **options):
    settings = {
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "learning_rate": PEAK,
        "max_steps": UPDATES,
        "max_grad_norm": 0.5,
        "save_steps": 5,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), **settings | options)


DATASET = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(56)]


def fit(trainer, resume_from=None):
    """Train; return the trainer, the learning rates of its updates, and the number of its groups."""
    with record_lrs() as used:
        trainer.train(resume_from_checkpoint=resume_from)
    return trainer, used, len(trainer.optimizer.param_groups)


def unchanged(folder):
    """Build the Trainer with an optimizer and a scheduler, by the expression on the page."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    (expression,) = re.findall(r"`(Trainer\(.+?)`", text)
    model = Net()
    names = {"Trainer": Trainer, "model": model, "arguments": arguments(folder), "dataset": DATASET}
    names |= {"optimizer": AdamW(model.parameters(), PEAK), "lambda_lr": lambda_lr, "curve": CURVE}
    return eval(expression, names)


def subclass(folder):
    """Build the subclass of the page."""
    folder.mkdir()
    names = train("Hugging Face Trainer", folder, changes={"trainer.train(": "print("}).names
    return names["CurveTrainer"](Net(), arguments(folder), train_dataset=DATASET)


def in_a_file(folder):
    """Build the Trainer after the import of the page's module, which reads the curve from a file."""
    __import__("curve_trainer")
    # The Trainer's own warmup has no effect.
    settings = arguments(folder, warmup_steps=3, max_steps=IN_FILE.total_steps)
    return Trainer(Net(), settings, train_dataset=DATASET)


IN_FILE = StagedCurve([("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")], total_steps=20)
OF_SUBCLASS = replace(PAGE_CURVE, total_steps=UPDATES, warmup_steps=UPDATES // 10)


@pytest.fixture
def curve_file(tmp_path, monkeypatch):
    """A folder with the files that the pages show for a curve in a file, importable from there."""
    blocks = {block.file: block for page in PAGES for section in sections(page) for block in section.blocks}
    for name in ("curve.yaml", "curve_file.py", "curve_trainer.py"):
        (tmp_path / name).write_text(blocks[name].code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Trainer, "create_scheduler", Trainer.create_scheduler)  # undone after the test
    for name in ("curve_file", "curve_trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("build", "curve"), [(unchanged, CURVE), (subclass, OF_SUBCLASS), (in_a_file, IN_FILE)]
)
def test_trainer_resumes_in_mid_epoch(build, curve, tmp_path, curve_file):
    uninterrupted, used, groups = fit(build(tmp_path / "whole"))
    assert used == expected_lrs(curve, range(curve.total_steps), groups=groups)
    logged = [entry["learning_rate"] for entry in uninterrupted.state.log_history if "learning_rate" in entry]
    assert logged == [lr for lr, *_ in used]
    resumed, used, _ = fit(build(tmp_path / "resumed"), str(tmp_path / "whole" / "checkpoint-5"))
    assert used == expected_lrs(curve, range(5, curve.total_steps), groups=groups)
    assert same_weights(resumed.model, uninterrupted.model)


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    trainer = unchanged(tmp_path)
    # accelerate rejects fp16 itself on a CPU; call 10 lies in the third update.
    trainer.accelerator.scaler, trainer.model.overflow_at = torch.amp.GradScaler("cpu"), 10
    _, used, _ = fit(trainer)
    assert trainer.state.global_step == UPDATES
    assert used == expected_lrs(CURVE, range(UPDATES - 1))


def chained(optimizer, scheduler):
    chain = ChainedScheduler([scheduler(optimizer, CURVE), ExponentialLR(optimizer, 0.9)], optimizer)
    return [chain], lambda _: chain


def before_averaging(optimizer, scheduler):
    schedulers = [scheduler(optimizer, CURVE), SWALR(optimizer, swa_lr=1e-4, anneal_epochs=3)]
    return schedulers, lambda update: schedulers[update >= 8]


@pytest.mark.parametrize("combine", [chained, before_averaging])
def test_curve_among_schedulers_of_torch_resumes(combine):
    inputs, targets = trainers.dataset(48).tensors

    def build(scheduler):
        model = trainers.net()
        optimizer = AdamW(model.parameters(), float(np.float32(PEAK)))
        schedulers, stepped = combine(optimizer, scheduler)
        return [model, optimizer, *schedulers], stepped

    def run(parts, stepped, first, last):
        model, optimizer, *_ = parts
        with record_lrs() as used:
            for update in range(first, last):
                rows = slice(update * 4, update * 4 + 4)
                trainers.loss_of(model, (inputs[rows], targets[rows])).backward()
                optimizer.step()
                optimizer.zero_grad()
                stepped(update).step()
        return used

    (uninterrupted, stepped), (interrupted, stepped_before), (resumed, stepped_later) = (
        build(lambda_lr) for _ in range(3)
    )
    used, before = run(uninterrupted, stepped, 0, 12), run(interrupted, stepped_before, 0, 5)
    states = through_file([part.state_dict() for part in interrupted])
    for part, state in zip(resumed, states, strict=True):
        part.load_state_dict(state)
    assert before + run(resumed, stepped_later, 5, 12) == used
    assert same_weights(resumed[0], uninterrupted[0])
    by_torch = run(*build(lambda optimizer, curve: LambdaLR(optimizer, lambda step: curve(step))), 0, 12)
    np.testing.assert_allclose(used, by_torch, rtol=2**-24)
    if combine is before_averaging:
        assert used[:9] == expected_lrs(CURVE, range(9))
