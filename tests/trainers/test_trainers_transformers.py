"""Hugging Face's Trainer as on the page: accumulation, resuming in mid-epoch."""

import re
from dataclasses import replace

import pytest
import torch
from support.trainers import trainers
from support.trainers.trainers import (
    CURVE,
    PAGE,
    PAGE_CURVE,
    PEAK,
    expected_lrs,
    record_lrs,
    same_weights,
    train,
)
from torch import nn
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

HEADING = "Hugging Face Trainer"
(UNCHANGED_TRAINER,) = re.findall(r"`(Trainer\(.+?)`", PAGE.read_text(encoding="utf-8"))
EPOCHS, UPDATES = 3, 12  # an epoch has 14 batches: three updates of four, and one of the last two


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls, self.overflow_at = trainers.net(), 0, 0

    def forward(self, inputs, labels):
        loss = trainers.loss_of(self.net, (inputs, labels))
        self.calls += 1
        return {"loss": loss * torch.inf if self.calls == self.overflow_at else loss}


def arguments(folder):
    return TrainingArguments(
        str(folder),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        learning_rate=PEAK,
        max_grad_norm=0.5,
        save_steps=5,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )


def fit(curve, folder, resume_from=None, overflow_at=0, trainer_class=None):
    """Train; return the trainer and the learning rates of its updates."""
    dataset = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(56)]
    model, settings = Net(), arguments(folder)
    if trainer_class:
        trainer = trainer_class(model, settings, train_dataset=dataset)
    else:
        names = {"Trainer": Trainer, "model": model, "arguments": settings, "dataset": dataset}
        names |= {"optimizer": AdamW(model.parameters(), PEAK), "lambda_lr": lambda_lr, "curve": curve}
        trainer = eval(UNCHANGED_TRAINER, names)
    if overflow_at:  # with a gradient scaler; accelerate rejects fp16 itself on a CPU
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.model.overflow_at = overflow_at
    with record_lrs() as used:
        trainer.train(resume_from_checkpoint=resume_from)
    return trainer, used


@pytest.mark.parametrize("subclass", [True, False], ids=["subclass", "as is"])
def test_resume_in_mid_epoch_matches_uninterrupted_run(subclass, tmp_path):
    curve, trainer_class = CURVE, None
    if subclass:
        curve = replace(PAGE_CURVE, total_steps=UPDATES, warmup_steps=UPDATES // 10)
        trainer_class = train(HEADING, tmp_path, changes={"trainer.train(": "print("}).names["CurveTrainer"]
    uninterrupted, used = fit(curve, tmp_path / "whole", trainer_class=trainer_class)
    groups = len(uninterrupted.optimizer.param_groups)
    assert used == expected_lrs(curve, range(UPDATES), groups=groups)
    logged = [entry["learning_rate"] for entry in uninterrupted.state.log_history if "learning_rate" in entry]
    assert logged == [rate for rate, *_ in used]

    resumed, used = fit(
        curve, tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-5"), trainer_class=trainer_class
    )
    assert used == expected_lrs(curve, range(5, UPDATES), groups=groups)
    assert same_weights(resumed.model, uninterrupted.model)


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    trainer, used = fit(CURVE, tmp_path, overflow_at=10)  # in the third update
    assert trainer.state.global_step == UPDATES
    assert used == expected_lrs(CURVE, range(UPDATES - 1))
