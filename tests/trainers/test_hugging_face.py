"""More ways to give Hugging Face's Trainer a curve; its run resumes in the middle of an epoch."""

import sys

import pytest
from support.docs.pages import ROOT, all_blocks
from support.trainers.trainers import expected_lrs, record_lrs, train
from transformers import Trainer

from plateau_jax import StagedCurve

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


@pytest.mark.usefixtures("curve_trainer")
def test_trainer_with_a_curve_in_a_file_resumes(tmp_path):
    build = """\
import curve_trainer
trainer = Trainer(model, arguments, train_dataset=dataset)"""
    stages = [(7, 1.0), ("rest",), ("20%", 0.0, "1-sqrt")]
    curve = StagedCurve(stages, total_steps=136)
    assert_trainer_resumes_in_mid_epoch(tmp_path, {SUBCLASS: build}, curve, groups=2)
