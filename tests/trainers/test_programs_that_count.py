"""Programs on the pages whose curves do not move with every update: fp16 and tokens."""

from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import indent

import pytest
import torch
from support.docs.pages import program_named, section_named
from support.schedulers.runs import learning_rate
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from trainers.runs import (
    PAGE_CURVE,
    expected_lrs,
    record_lrs,
    resumes_in_its_folder,
    run_and_resume,
    train,
)

pytestmark = [
    pytest.mark.slow,
    resumes_in_its_folder,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def use_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


# Skipped updates.


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    """With a gradient scaler, since fp16 itself needs a GPU. The third update is skipped."""
    build = "accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)\n"
    changes = {
        build: f"{build}accelerator.scaler = torch.amp.GradScaler('cpu')\n",
        "accelerator.backward(loss)": (
            "accelerator.backward(loss * torch.inf if update == 2 else loss)"
        ),
    }
    run = train("accelerate", tmp_path, changes=changes, record=record_lrs, interrupt_after=1)
    # 40 updates, of which the hook has not seen the skipped one.
    assert run.recorded == expected_lrs(PAGE_CURVE, range(39))


# Programs that count tokens.


DATA = """\
ROWS, UNIT = 51_200, 1024
torch.manual_seed(0)
rows = torch.randn(ROWS, 8)
tokens = torch.randint(1, 64, (ROWS,))
curve = StagedCurve.wsd(int(tokens.sum()) // UNIT, warmup_steps="10%", decay_steps="20%")
dataset = torch.utils.data.TensorDataset(rows, rows.sin().sum(1, keepdim=True), tokens)
"""
"""Pretends that each row is a text of this many tokens."""
IMPORTS = {"import StagedCurve": "import DataClock, StagedCurve"}


def changes_for_lightning():
    (method,) = section_named("PyTorch Lightning, counting tokens").code_in("py")
    return {
        """\
torch.manual_seed(0)
inputs = torch.randn(8192, 8)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
loader = make_loader(dataset, 256,""": "loader = make_loader(dataset, 128,",
        "\nclass Regression": f"{DATA}\n\nclass Regression",
        "nn.Linear(32, 1))\n": "nn.Linear(32, 1))\n        self.tokens = 0\n",
        "        inputs, targets = batch\n": (
            "        inputs, targets, tokens = batch\n        self.tokens += tokens.sum()\n"
        ),
        "if update % 40 == 0": "if update % 40 == 0 and batch_idx % 2",
        "    def configure_optimizers": f"{indent(method, '    ')}\n    def configure_optimizers",
        """\
        updates = self.trainer.estimated_stepping_batches
        curve = StagedCurve.wsd(updates, warmup_steps=20, decay_steps="20%")
""": "",
        "lambda_lr(optimizer, curve)": "lambda_lr(optimizer, curve, clock=DataClock(UNIT))",
        "max_steps=200": "accumulate_grad_batches=2,\n    max_steps=200",
    }


def changes_for_the_trainer():
    (counting,) = section_named("Hugging Face Trainer, counting tokens").code_in("py")
    code = program_named("Hugging Face Trainer").code
    _, begin, rest = code.partition("class CurveTrainer")
    subclass, regression, _ = rest.partition("\n\nclass Regression")
    return {
        begin + subclass + regression: f"{DATA}\n\n{counting}\n\nclass Regression",
        "def forward(self, inputs, labels)": "def forward(self, inputs, labels, tokens)",
        """\
torch.manual_seed(0)
dataset = [
    {"inputs": inputs, "labels": inputs.sin().sum(0, keepdim=True)}
    for inputs in torch.randn(12_800, 8)
]
""": """\
dataset = [
    {"inputs": row, "labels": row.sin().sum(0, keepdim=True), "tokens": count}
    for row, count in zip(rows, tokens)
]
""",
        "num_train_epochs=4": "num_train_epochs=1",
    }


CHANGES = {
    "PyTorch Lightning": changes_for_lightning,
    "Hugging Face Trainer": changes_for_the_trainer,
}
"""With which a program counts tokens. An update has two micro-batches of 128 rows."""


@dataclass
class UpdatesOfPages:
    lrs: list[list[float]]
    batches: list[Tensor]
    """The rows of each micro-batch."""


@contextmanager
def record_lrs_and_batches():
    """Record the learning rates, and the rows that the first layer gets of each micro-batch."""
    batches = []

    def note(module, inputs):
        if isinstance(module, nn.Linear) and module.in_features == 8:
            batches.append(inputs[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        with record_lrs() as lrs:
            yield UpdatesOfPages(lrs, batches)
    finally:
        handle.remove()


def count_tokens(batches, rows, tokens):
    """Return the tokens of each micro-batch, given those of each row of the data."""
    tokens_of_row = {}
    for row, count in zip(rows, tokens, strict=True):
        tokens_of_row[row.numpy().tobytes()] = int(count)
    return [sum(tokens_of_row[row.numpy().tobytes()] for row in batch) for batch in batches]


@pytest.mark.parametrize("heading", CHANGES)
def test_program_that_counts_tokens_resumes(heading, tmp_path):
    """A step of the curve is 1024 tokens, and an update has two micro-batches."""
    changes = IMPORTS | CHANGES[heading]()
    uninterrupted, resumed = run_and_resume(heading, tmp_path, record_lrs_and_batches, changes)
    names = uninterrupted.names
    updates = uninterrupted.recorded
    tokens = count_tokens(updates.batches, names["rows"], names["tokens"])
    assert len(updates.lrs) == 200
    assert len(tokens) == 400
    consumed = 0
    for update, lrs in enumerate(updates.lrs):
        lr = learning_rate(1e-2, names["curve"], consumed // 1024)
        assert set(lrs) == {lr}
        consumed += tokens[2 * update] + tokens[2 * update + 1]
    assert consumed == int(names["tokens"].sum())
    assert resumed.recorded.lrs == updates.lrs[100:]
    resumed.assert_same_weights(uninterrupted)
    assert torch.equal(resumed.names["rows"], names["rows"])
