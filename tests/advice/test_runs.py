"""Warnings about runs without torch: the histories, states and logs of curves.

`test_curves` says how to read these tests.
"""

import json
import shutil

import pytest
from support.curve_warnings import warns

from plateau_jax import PlateauCurve, check_resume_file, compare_log, resume_record

CURVE = PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])
RECORD = resume_record(CURVE, 0.5)
LOWER_PEAK = resume_record(CURVE, 0.25)
COOLED = resume_record(CURVE.cooldown(40, 20), 0.5)


def check_is_rejected(path, record, step):
    with pytest.raises(ValueError, match=f"cannot resume at step {step}"):
        check_resume_file(path, record, step)


def test_missing_history(tmp_path):
    original, path = tmp_path / "original.json", tmp_path / "curve.json"
    check_resume_file(original, RECORD, 0)
    advice = (
        "If the run, or the one that it branched from, has such a file elsewhere, copy it to this "
        "path"
    )
    with warns(advice):
        check_resume_file(path, RECORD, 40)
    shutil.copy(original, path)
    check_resume_file(path, RECORD, 40)
    check_is_rejected(path, LOWER_PEAK, 40)


def test_second_start_at_step_0(tmp_path):
    path = tmp_path / "curve.json"
    check_resume_file(path, RECORD, 0)
    advice = (
        "If the run should have resumed, delete the entry that this start adds to the file, and "
        "restore the checkpoint before this call. Give a new run its own file"
    )
    with warns(advice):
        check_resume_file(path, COOLED, 0)

    history = json.loads(path.read_text())
    del history["entries"][1]
    path.write_text(json.dumps(history))
    check_resume_file(path, COOLED, 40)
    check_is_rejected(path, LOWER_PEAK, 30)

    check_resume_file(tmp_path / "new.json", COOLED, 0)
    check_is_rejected(tmp_path / "new.json", RECORD, 60)


def test_last_line_without_its_end(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{step},{CURVE.learning_rate(step, 0.5)}" for step in range(20)]
    path.write_text("step,lr\n" + "\n".join(rows))
    with warns("if the row is complete, end it with a newline"):
        compare_log(path, CURVE, 0.5)
    path.write_text(path.read_text() + "\n")
    assert compare_log(path, CURVE, 0.5).num_lrs == 20
