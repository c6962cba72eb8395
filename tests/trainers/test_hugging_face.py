"""More ways to give Hugging Face's Trainer a curve, and which changes stop a resume."""

import sys
import warnings

import pytest
from support.docs.pages import ROOT, all_blocks
from trainers.runs import expected_lrs, record_lrs, train
from transformers import Trainer

from plateau_jax import CurveWarning, StagedCurve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

TRAINER = "Hugging Face Trainer"
SUBCLASS = "trainer = CurveTrainer(model, arguments, train_dataset=dataset)"
NO_SUBCLASS = (
    "Trainer(model, arguments, train_dataset=dataset, "
    "optimizers=(optimizer, lambda_lr(optimizer, curve)))"
)


def assert_trainer_resumes_in_mid_epoch(folder, changes, curve, groups):
    """An epoch has 33 updates of three batches, and one of one; `warmup_steps` has no effect.

    The first run saves after 40 updates, and is interrupted.
    """
    changes = {
        **changes,
        "gradient_accumulation_steps=2": "gradient_accumulation_steps=3, warmup_steps=3",
        "logging_steps=50": "logging_steps=20",
        "save_steps=50": "save_steps=40",
    }
    in_a_new_folder = {**changes, "saved_transformers": "saved_whole"}
    uninterrupted = train(TRAINER, folder, changes=in_a_new_folder, record=record_lrs)
    train(TRAINER, folder, changes=changes, interrupt_after=4)
    resumed = train(TRAINER, folder, changes=changes, record=record_lrs)
    lrs = uninterrupted.recorded
    assert lrs == expected_lrs(curve, range(136), groups)
    history = uninterrupted.names["trainer"].state.log_history
    logged = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    lrs_of_first_group = [lrs_of_groups[0] for lrs_of_groups in lrs]
    assert logged == lrs_of_first_group[19::20]
    assert resumed.recorded == lrs[40:]
    resumed.assert_same_weights(uninterrupted)


def test_trainer_without_a_subclass_resumes(tmp_path):
    build = f"""\
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
curve = StagedCurve.wsd(136, warmup_steps=3, decay_steps="20%", min_lr_ratio=0.1)
trainer = {NO_SUBCLASS}"""
    curve = StagedCurve([(3, 1.0), (106,), (27, 0.1, "1-sqrt")])
    assert_trainer_resumes_in_mid_epoch(tmp_path, {SUBCLASS: build}, curve, groups=1)


def test_page_has_the_trainer_without_a_subclass():
    page = ROOT / "docs" / "hugging_face.md"
    assert f"`{NO_SUBCLASS}`" in page.read_text(encoding="utf-8")


@pytest.fixture
def curve_trainer(tmp_path, monkeypatch):
    """The file for TRL; the method of every Trainer that it replaces is restored afterwards."""
    (code,) = [block.code for block in all_blocks() if block.file == "curve_trainer.py"]
    file = tmp_path / "curve_trainer.py"
    file.write_text(code.replace("warmup_steps=100", "warmup_steps=7"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "curve_trainer", raising=False)
    monkeypatch.setattr(Trainer, "create_scheduler", Trainer.create_scheduler)


WITH_A_FILE = {
    SUBCLASS: """\
import curve_trainer
trainer = Trainer(model, arguments, train_dataset=dataset)""",
    "warnings.filterwarnings(": "# warnings.filterwarnings(",  # the file sets this filter itself
}


@pytest.mark.usefixtures("curve_trainer")
def test_trainer_with_a_curve_in_a_file_resumes(tmp_path):
    stages = [(7, 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]
    curve = StagedCurve(stages, total_steps=136)
    assert_trainer_resumes_in_mid_epoch(tmp_path, WITH_A_FILE, curve, groups=2)


# Changes between a save and a resume. The Trainer hides a single warning of a load.

as_in_a_program = pytest.mark.filterwarnings("default")
"""Warnings are not errors."""

WITHOUT_A_CURVE = {SUBCLASS: "trainer = Trainer(model, arguments, train_dataset=dataset)"}
LOWER_PEAK = {"learning_rate=1e-2": "learning_rate=5e-3"}
LATE_WARMUP = {"warmup_steps=10": "warmup_steps=20"}
LONGER = {"num_train_epochs=4": "num_train_epochs=5"}


def resume(folder, before, after):
    """Train until a checkpoint is saved at update 50, and resume with other changes."""
    with warnings.catch_warnings():  # the program adds a filter
        train(TRAINER, folder, changes=before, interrupt_after=2)
    sys.modules.pop("curve_trainer", None)
    return train(TRAINER, folder, changes=after, record=record_lrs)


@pytest.mark.usefixtures("curve_trainer")
@as_in_a_program
@pytest.mark.parametrize(
    ("before", "after", "error", "part"),
    [
        ({}, LOWER_PEAK, CurveWarning, r"a peak of 0\.01, now 0\.005"),
        (
            WITH_A_FILE,
            WITH_A_FILE | LOWER_PEAK,
            CurveWarning,
            r"a peak of 0\.01, now 0\.005",
        ),
        ({}, LATE_WARMUP, ValueError, "differ from step 1 on"),
        (WITHOUT_A_CURVE, {}, CurveWarning, "without a curve"),
        (WITHOUT_A_CURVE, WITH_A_FILE, CurveWarning, "without a curve"),
    ],
)
def test_changed_schedule_stops_the_trainer(before, after, error, part, tmp_path):
    with pytest.raises(error, match=part):
        resume(tmp_path, before, after)


WANTED = {
    **LATE_WARMUP,
    "self.optimizer, curve)": "self.optimizer, curve, strict=False)",
    "warnings.filterwarnings(": "# warnings.filterwarnings(",
}


@pytest.mark.parametrize(
    ("after", "updates", "warmup_steps"),
    [
        (LONGER, 250, 10),
        pytest.param(WANTED, 200, 20, marks=as_in_a_program),
    ],
)
def test_trainer_resumes_under_a_changed_curve(after, updates, warmup_steps, tmp_path):
    curve = StagedCurve.wsd(updates, warmup_steps=warmup_steps, decay_steps="20%")
    resumed = resume(tmp_path, {}, after)
    assert resumed.recorded == expected_lrs(curve, range(50, updates), groups=2)
