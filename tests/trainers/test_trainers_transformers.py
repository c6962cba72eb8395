"""Hugging Face's Trainer under a curve, with the README's lines: accumulation, resumed in mid-epoch."""

import pytest
import torch
from support import trainers
from support.trainers import CURVE, PEAK, execute, rates, rates_used, readme, same_weights
from torch import nn
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

from plateau_jax import PlateauCurve
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

*SUBCLASS, AS_IT_IS = readme("Hugging Face Trainer")
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


def as_a_subclass(names):
    execute(SUBCLASS, names)
    return names["CurveTrainer"](names["model"], names["args"], train_dataset=names["dataset"])


def as_it_is(names):
    names["optimizer"] = AdamW(names["model"].parameters(), PEAK)
    execute([AS_IT_IS], names)
    return names["trainer"]


def fit(build, curve, folder, resume_from=None, overflow_at=0):
    """The trainer after its training, and the rates that its updates used."""
    dataset = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(56)]
    names = {"model": Net(), "args": arguments(folder), "dataset": dataset, "curve": curve}
    trainer = build(names | {"Trainer": Trainer, "PlateauCurve": PlateauCurve, "lambda_lr": lambda_lr})
    if overflow_at:  # with a gradient scaler; accelerate refuses fp16 itself on a CPU
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        trainer.model.overflow_at = overflow_at
    with rates_used() as used:
        trainer.train(resume_from_checkpoint=resume_from)
    return trainer, used


@pytest.mark.parametrize(
    ("build", "curve"), [(as_a_subclass, PlateauCurve(UPDATES)), (as_it_is, CURVE)], ids=["subclass", "as is"]
)
def test_resumed_in_mid_epoch_it_is_as_uninterrupted(build, curve, tmp_path):
    whole, used = fit(build, curve, tmp_path / "whole")
    groups = len(whole.optimizer.param_groups)
    assert used == rates(curve, range(UPDATES), groups=groups)
    logged = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert logged == [rate for rate, *_ in used]

    resumed, used = fit(build, curve, tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-5"))
    assert used == rates(curve, range(5, UPDATES), groups=groups)
    assert same_weights(resumed.model, whole.model)


def test_an_update_that_fp16_skips_leaves_the_curve_where_it_is(tmp_path):
    trainer, used = fit(as_it_is, CURVE, tmp_path, overflow_at=10)  # in the third update
    assert trainer.state.global_step == UPDATES
    assert used == rates(CURVE, range(UPDATES - 1))
