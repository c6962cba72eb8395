"""The PyTorch programs on the pages: their learning rates; resumed equals uninterrupted.

A test runs the program under a heading. If a user of the page would change some of its lines, the
test replaces them: `changes` has the old and the new code.
"""

import math
from contextlib import contextmanager
from textwrap import indent

import numpy as np
import pytest
import torch
from support.docs.pages import ROOT, programs, section_named
from support.schedulers.runs import learning_rate
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trainers.runs import (
    NO_CHANGES,
    PAGE_CURVE,
    expected_lrs,
    record_lrs,
    resumes_in_its_folder,
    run_and_resume,
)

from plateau_jax import StagedCurve

pytestmark = [
    pytest.mark.slow,
    resumes_in_its_folder,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

PLAIN = "A training loop that resumes"
ACCELERATE = "accelerate"
FABRIC = "Lightning Fabric"
LIGHTNING = "PyTorch Lightning"
TRAINER = "Hugging Face Trainer"

PEAK = float(np.float32(1e-2))
TRAINER_CURVE = StagedCurve([(10, 1.0), (150,), (40, 0.0, "1-sqrt")])
"""The curve of the program for Hugging Face's Trainer."""


def test_each_program_that_resumes_is_tested():
    tested_here = {PLAIN, ACCELERATE, FABRIC, LIGHTNING, TRAINER}
    tested_in_test_jax_programs = {
        "flax nnx",
        "flax linen",
        "optax: MultiSteps and apply_if_finite",
        "Train with optax, save with orbax",
    }
    tested_in_test_ranks = {
        "DDP and FSDP2",
        "Count tokens under DDP with gradient accumulation",
    }
    tested_in_test_scheduler = {"Any framework: count samples, save and resume"}
    resuming = {program.heading for program in programs() if program.resumes}
    tested = tested_here | tested_in_test_jax_programs | tested_in_test_ranks
    assert resuming == tested | tested_in_test_scheduler


@pytest.fixture(autouse=True)
def use_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


# Programs as they are on the pages.


def assert_resumes(heading, folder, expected, changes=NO_CHANGES):
    """Run a program, check its learning rates, and that it resumes in the middle."""
    uninterrupted, resumed = run_and_resume(heading, folder, record_lrs, changes)
    assert uninterrupted.recorded == expected
    assert resumed.recorded == expected[len(expected) // 2 :]
    resumed.assert_same_weights(uninterrupted)


@pytest.mark.parametrize("heading", [PLAIN, ACCELERATE, FABRIC, LIGHTNING])
def test_program_resumes(heading, tmp_path):
    assert_resumes(heading, tmp_path, expected_lrs(PAGE_CURVE, range(200)))


def test_trainer_resumes(tmp_path):
    """Its groups are the parameters with and without weight decay."""
    assert_resumes(TRAINER, tmp_path, expected_lrs(TRAINER_CURVE, range(200), groups=2))


# Programs with lines that the pages offer in place of others.

CURVE = 'curve = StagedCurve.wsd(UPDATES, warmup_steps=20, decay_steps="20%")\n'
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
SCHEDULER_FORMAT = "scheduler = lambda_lr(optimizer, curve)\n"


def lines_of_section(heading):
    """Return the only block of code in a section."""
    (block,) = section_named(heading).blocks
    return block.code


def test_reduce_lr_on_plateau_takes_over_from_the_warmup(tmp_path):
    """After the warmup, the learning rate is the peak, then half of it, then a quarter."""
    build, step = lines_of_section("A warmup before ReduceLROnPlateau").split("\n# In the loop")
    _, _, step = step.partition("\n")
    changes = {
        SCHEDULER_FORMAT: build,
        "    scheduler.step()\n": indent(step, "    "),
        "inputs = torch.randn(256, 8)\n": (
            "inputs = torch.randn(256, 8)\n    validation_loss = max(0.5, 1 - update / 100)\n"
        ),
        "scheduler=scheduler) or 0": "scheduler=scheduler, plateau=plateau) or 0",
        "scheduler=scheduler)\n": "scheduler=scheduler, plateau=plateau)\n",
        "scheduler.get_last_lr()[0]": "optimizer.param_groups[0]['lr']",
    }
    uninterrupted, resumed = run_and_resume(PLAIN, tmp_path, record_lrs, changes)
    lrs = uninterrupted.recorded
    assert lrs[:20] == expected_lrs(StagedCurve([(20, 1.0)]), range(20))
    halvings = [math.log2(PEAK / lr) for (lr,) in lrs[20:]]
    assert halvings == sorted(halvings)
    assert set(halvings) == set(range(int(halvings[-1]) + 1))
    assert halvings[-1] >= 2
    assert resumed.recorded == lrs[100:]
    resumed.assert_same_weights(uninterrupted)


def test_sequence_of_schedulers_resumes(tmp_path):
    """40 updates at a tenth of the peak, and then a curve of 160 steps."""
    changes = {SCHEDULER_FORMAT: lines_of_section("Combine with torch's schedulers")}
    constant = [[0.1 * PEAK]] * 40
    curve = StagedCurve([(20, 1.0), (108,), (32, 0.0, "1-sqrt")], start=0.1)
    assert_resumes(PLAIN, tmp_path, constant + expected_lrs(curve, range(160)), changes)


@contextmanager
def compiled_once():
    """Compile anew; compiling the same function again, for another learning rate, is an error."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


def test_compiled_optimizer_resumes(tmp_path):
    """The program keeps its learning rates itself, because a hook would be compiled too."""
    changes = {
        CURVE: "",
        OPTIMIZER + SCHEDULER_FORMAT: f"{lines_of_section('A compiled optimizer')}lrs = []\n",
        "    optimizer.step()\n": (
            '    lrs.append([float(optimizer.param_groups[0]["lr"])])\n    compiled_step()\n'
        ),
    }
    uninterrupted, resumed = run_and_resume(PLAIN, tmp_path, compiled_once, changes)
    curve = StagedCurve([(20, 1.0), (140,), (40, 0.0, "1-sqrt")], start=0.05)
    assert uninterrupted.names["lrs"] == expected_lrs(curve, range(200))
    assert resumed.names["lrs"] == uninterrupted.names["lrs"][100:]
    resumed.assert_same_weights(uninterrupted)


RETURNS_ONE_SCHEDULER = """\
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": lambda_lr(optimizer, curve), "interval": "step"},
        }
"""
RETURNS_TWO_SCHEDULERS = """\
        warmup = lambda_lr(optimizer, StagedCurve([(WARMUP, 1.0)]))
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            {"scheduler": warmup, "interval": "step"},
            {"scheduler": plateau, "interval": "step", "frequency": 32, "monitor": "same"},
        ]
"""


def test_reduce_lr_on_plateau_takes_over_in_lightning(tmp_path):
    """The monitored number never falls: each 32 updates but the first halve the learning rate."""
    steps_in_turn = lines_of_section("A warmup before `ReduceLROnPlateau` in Lightning")
    changes = {
        "from pathlib": (
            "from torch.optim.lr_scheduler import ReduceLROnPlateau\nWARMUP = 20\nfrom pathlib"
        ),
        ", self.lr_schedulers().get_last_lr()[0]": ', self.optimizers().param_groups[0]["lr"]',
        "        return loss\n": '        self.log("same", 1.0)\n        return loss\n',
        RETURNS_ONE_SCHEDULER: RETURNS_TWO_SCHEDULERS + indent(steps_in_turn, "    "),
    }
    expected = expected_lrs(StagedCurve([(20, 1.0)]), range(20))
    for update in range(20, 200):
        halvings = max(update // 32 - 1, 0)
        expected.append([PEAK / 2**halvings])
    uninterrupted, resumed = run_and_resume(LIGHTNING, tmp_path, record_lrs, changes)
    assert uninterrupted.recorded == expected
    assert resumed.recorded == expected[100:]


# One scheduler for the learning rate and for the weight decay.

CHAINED = (
    'ChainedScheduler([lambda_lr(optimizer, curve), follow(optimizer, "weight_decay", rising)])'
)
IMPORTS = {
    "from pathlib": """\
from torch.optim.lr_scheduler import ChainedScheduler
from torch_bridge import StagedCurve, follow

rising = StagedCurve([(200, 1.0, "cosine")], start=0.1)
from pathlib"""
}


@contextmanager
def record_lrs_and_decays():
    """Record the learning rate and the weight decay of each group at every update."""
    used = []

    def note(optimizer, *_):
        used.append([(group["lr"], group["weight_decay"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield used
    finally:
        handle.remove()


def test_weight_decay_is_scheduled_too_in_trainer(tmp_path):
    """It rises from 0.02 to 0.2. Biases have none, and are a second group."""
    changes = {
        **IMPORTS,
        "learning_rate=1e-2,": "learning_rate=1e-2,\n    weight_decay=0.2,",
        "lambda_lr(optimizer or self.optimizer, curve)": (
            CHAINED.replace("optimizer,", "self.optimizer,")
        ),
    }
    uninterrupted, resumed = run_and_resume(TRAINER, tmp_path, record_lrs_and_decays, changes)
    rising = StagedCurve([(200, 1.0, "cosine")], start=0.1)
    expected = []
    for update in range(200):
        lr = learning_rate(1e-2, TRAINER_CURVE, update)
        weight_decay = learning_rate(0.2, rising, update)
        expected.append([(lr, weight_decay), (lr, 0.0)])
    assert uninterrupted.recorded == expected
    assert resumed.recorded == expected[100:]
    resumed.assert_same_weights(uninterrupted)


@pytest.mark.parametrize("page", ["lightning.md", "hugging_face.md"])
def test_page_has_the_chained_scheduler(page):
    assert f"`{CHAINED}`" in (ROOT / "docs" / page).read_text(encoding="utf-8")
