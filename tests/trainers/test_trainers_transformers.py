"""Hugging Face's Trainer under a curve, by the page's program: accumulation, resumed in mid-epoch."""

import re
from dataclasses import replace

import pytest
import torch
from support.trainers import trainers
from support.trainers.trainers import CURVE, OF_PAGE, PAGE, PEAK, rates, rates_used, same_weights, train
from torch import nn
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

HEADING = "Hugging Face Trainer"
(AS_IT_IS,) = re.findall(r"`(Trainer\(.+?)`", PAGE.read_text(encoding="utf-8"))
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
    """The trainer after its training, and the rates that its updates used."""
    dataset = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(56)]
    model, settings = Net(), arguments(folder)
    if trainer_class:
        trainer = trainer_class(model, settings, train_dataset=dataset)
    else:
        names = {"Trainer": Trainer, "model": model, "arguments": settings, "dataset": dataset}
        names |= {"optimizer": AdamW(model.parameters(), PEAK), "lambda_lr": lambda_lr, "curve": curve}
        trainer = eval(AS_IT_IS, names)
    if overflow_at:  # with a gradient scaler; accelerate refuses fp16 itself on a CPU
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.model.overflow_at = overflow_at
    with rates_used() as used:
        trainer.train(resume_from_checkpoint=resume_from)
    return trainer, used


@pytest.mark.parametrize("subclass", [True, False], ids=["subclass", "as is"])
def test_resumed_in_mid_epoch_it_is_as_uninterrupted(subclass, tmp_path):
    curve, chosen = CURVE, None
    if subclass:
        curve = replace(OF_PAGE, total_steps=UPDATES, warmup_steps=UPDATES // 10)
        chosen = train(HEADING, tmp_path, changes={"trainer.train(": "print("}).names["CurveTrainer"]
    whole, used = fit(curve, tmp_path / "whole", trainer_class=chosen)
    groups = len(whole.optimizer.param_groups)
    assert used == rates(curve, range(UPDATES), groups=groups)
    logged = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert logged == [rate for rate, *_ in used]

    resumed, used = fit(
        curve, tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-5"), trainer_class=chosen
    )
    assert used == rates(curve, range(5, UPDATES), groups=groups)
    assert same_weights(resumed.model, whole.model)


def test_an_update_that_fp16_skips_leaves_the_curve_where_it_is(tmp_path):
    trainer, used = fit(CURVE, tmp_path, overflow_at=10)  # in the third update
    assert trainer.state.global_step == UPDATES
    assert used == rates(CURVE, range(UPDATES - 1))
