"""Hugging Face's Trainer, configured as on the pages, resumes in mid-epoch."""

import re

import pytest
from support.docs.pages import PAGES
from support.trainers import trainers
from support.trainers.trainers import CURVE, PEAK, expected_lrs, import_from_pages, record_lrs, same_weights
from torch import nn
from torch.optim import AdamW
from transformers import Trainer, TrainingArguments

from plateau_jax import StagedCurve
from torch_bridge import lambda_lr

pytestmark = pytest.mark.slow

IN_FILE = StagedCurve([("5%", 1.0), ("rest",), ("20%", 0.0, "1-sqrt")], total_steps=20)
DATASET = [{"inputs": inputs, "labels": labels} for inputs, labels in trainers.dataset(56)]


class Net(nn.Module):
    """The Trainer's epoch has 14 batches: three updates of four, and one of the last two."""

    def __init__(self):
        super().__init__()
        self.net = trainers.net()

    def forward(self, inputs, labels):
        return {"loss": trainers.loss_of(self.net, (inputs, labels))}


def arguments(folder, **options):
    settings = {
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "learning_rate": PEAK,
        "max_grad_norm": 0.5,
        "save_steps": 5,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), **settings, **options)


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
    names = {"Trainer": Trainer, "model": model, "dataset": DATASET, "lambda_lr": lambda_lr, "curve": CURVE}
    names |= {"arguments": arguments(folder, max_steps=12), "optimizer": AdamW(model.parameters(), PEAK)}
    return eval(expression, names)


def in_a_file(folder):
    """Build the Trainer after the import of the page's module, which reads the curve from a file."""
    __import__("curve_trainer")
    # The Trainer's own warmup has no effect.
    return Trainer(Net(), arguments(folder, warmup_steps=3, max_steps=20), train_dataset=DATASET)


@pytest.fixture
def curve_file(tmp_path, monkeypatch):
    import_from_pages(tmp_path, monkeypatch, "curve.yaml", "curve_file.py", "curve_trainer.py")
    monkeypatch.setattr(Trainer, "create_scheduler", Trainer.create_scheduler)  # undone after the test


@pytest.mark.parametrize(("build", "curve"), [(unchanged, CURVE), (in_a_file, IN_FILE)])
def test_trainer_resumes_in_mid_epoch(build, curve, tmp_path, curve_file):
    uninterrupted, used, groups = fit(build(tmp_path / "whole"))
    assert used == expected_lrs(curve, range(curve.total_steps), groups=groups)
    logged = [entry["learning_rate"] for entry in uninterrupted.state.log_history if "learning_rate" in entry]
    assert logged == [lr for lr, *_ in used]
    resumed, used, _ = fit(build(tmp_path / "resumed"), str(tmp_path / "whole" / "checkpoint-5"))
    assert used == expected_lrs(curve, range(5, curve.total_steps), groups=groups)
    assert same_weights(resumed.model, uninterrupted.model)
