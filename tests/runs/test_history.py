"""The history of a run in a file: what it accepts, and what it survives."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from support.examples import examples
from support.raises import raises

from plateau_jax import (
    CurveWarning,
    DataClock,
    HoldUntilFlat,
    PlateauCurve,
    check_resume_file,
    resume_record,
)

FLAT = PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])
CURVES = [
    FLAT,
    FLAT.cooldown(30, 20),
    FLAT.cooldown(50, 20),
    FLAT.part(0, 40).then(PlateauCurve(60)),
    PlateauCurve(100, warmup_steps=20, plateaus=[(0, 60)]),
    PlateauCurve(150, warmup_steps=10, plateaus=[(0, 60)]),
]


RECORD = resume_record(FLAT, 0.5)
LOWER_PEAK = resume_record(FLAT, 0.25)
COOLED = resume_record(FLAT.cooldown(30, 20), 0.5)


def steps_in(path):
    history = json.loads(path.read_text())
    return [entry["step"] for entry in history["entries"]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "curve.json"


# What is accepted.


PEAKS = [0.5, 0.5, 0.25]
starts = st.tuples(st.integers(1, 70), st.sampled_from(CURVES), st.sampled_from(PEAKS))


@pytest.mark.filterwarnings("ignore:at = ")
@examples(200)
@given(st.lists(starts, max_size=6), st.integers(1, 30))
def test_run_resumes_if_its_learning_rates_so_far_agree(drawn_starts, length):
    """The oracle has the peak and the multiplier of each update, and forgets what it goes back."""
    used = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "curve.json"
        check_resume_file(path, RECORD, 0)
        used += [(0.5, FLAT(step)) for step in range(length)]
        for drawn_step, curve, peak in drawn_starts:
            step = min(drawn_step, len(used))
            past = [(peak, curve(earlier)) for earlier in range(step)]
            future = [(peak, curve(later)) for later in range(step, step + length)]
            before = path.read_text()
            if used[:step] == past:
                check_resume_file(path, resume_record(curve, peak), step)
                used = past + future
            else:
                with pytest.raises(ValueError, match=f"cannot resume at step {step}: "):
                    check_resume_file(path, resume_record(curve, peak), step)
                assert path.read_text() == before


def test_same_record_adds_nothing(path):
    for step in (0, 0, 40, 20, 40):
        check_resume_file(path, RECORD, step)
    assert steps_in(path) == [0]


def test_each_run_and_each_branch_has_an_entry(path):
    check_resume_file(path, RECORD, 0)
    check_resume_file(path, COOLED, 30)
    check_resume_file(str(path), COOLED, 45)
    message = f"^{path} already has the history of a run, and a start at step 0 begins another"
    with pytest.warns(CurveWarning, match=message):
        check_resume_file(path, LOWER_PEAK, 0)
    assert steps_in(path) == [0, 30, 0]


def test_override_is_an_entry_and_holds_from_its_step_on(path):
    check_resume_file(path, RECORD, 0)
    message = "saved with a peak of 0.5, now 0.25. The run continues with 0.25"
    with pytest.warns(CurveWarning, match=message):
        check_resume_file(path, LOWER_PEAK, 40, strict=False)
    check_resume_file(path, LOWER_PEAK, 40)
    check_resume_file(path, LOWER_PEAK, 60)
    with pytest.raises(ValueError, match=r"saved with a peak of 0\.25, now 0\.5"):
        check_resume_file(path, RECORD, 60)
    check_resume_file(path, RECORD, 20)  # an earlier checkpoint, made under the old peak
    check_resume_file(path, RECORD, 60)
    assert steps_in(path) == [0, 40, 20]


@pytest.mark.filterwarnings("ignore:.*already has the history of a run")
def test_run_with_a_clock_may_have_made_updates_at_step_0(path):
    without_warmup = PlateauCurve(100, plateaus=[(0, 60)])
    rule = HoldUntilFlat(10, limit=500)
    held = resume_record(without_warmup, 0.5, rule)
    held_at_lower_peak = resume_record(without_warmup, 0.25, rule)
    check_resume_file(path, held, 0)
    check_resume_file(path, held, 0)
    with pytest.raises(ValueError, match=r"step 0: .* saved with a peak of 0\.5, now 0\.25"):
        check_resume_file(path, held_at_lower_peak, 0)
    with pytest.warns(CurveWarning, match="saved with"):
        check_resume_file(path, held_at_lower_peak, 0, strict=False)
    assert steps_in(path) == [0, 0]


def test_run_that_had_a_clock_is_compared_at_step_0(path):
    check_resume_file(path, resume_record(FLAT, 0.5, DataClock(8)), 0)
    with pytest.raises(ValueError, match="step 0: it was saved with clock"):
        check_resume_file(path, RECORD, 0)


def test_warning_that_is_an_error_leaves_the_file(path):
    """Else the next start would pass."""
    check_resume_file(path, RECORD, 0)
    for _ in range(2):
        with pytest.raises(CurveWarning, match="a different peak"):
            check_resume_file(path, LOWER_PEAK, 40, strict=False)
    assert steps_in(path) == [0]


# A file that is not there, or elsewhere.


def test_missing_file_above_step_0_is_a_warning_once(path):
    with pytest.warns(CurveWarning, match=f"{path} has no entry yet.* before step 40"):
        check_resume_file(path, RECORD, 40)
    check_resume_file(path, RECORD, 40)
    with pytest.raises(ValueError, match="saved with"):
        check_resume_file(path, LOWER_PEAK, 40)


# A file that cannot be read or written.


def test_file_that_is_no_history(path):
    path.parent.mkdir()
    path.write_text("[]")
    with pytest.raises(ValueError, match=f"^{path} is not the history of a run, or is damaged"):
        check_resume_file(path, RECORD, 0)
    assert path.read_text() == "[]"


def test_truncated_file_is_never_taken_for_another(path):
    check_resume_file(path, RECORD, 0)
    check_resume_file(path, COOLED, 30)
    content = path.read_bytes()
    for length in range(1, len(content) - 1):  # without its last newline it is whole
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is damaged"):
            check_resume_file(path, RECORD, 40)


@pytest.mark.parametrize("of_entry", [False, True])
def test_file_of_a_different_version(path, of_entry):
    check_resume_file(path, RECORD, 0)
    saved = json.loads(path.read_text())
    different = saved
    if of_entry:
        (different,) = saved["entries"]
    different["note"] = "text"
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=f"{path}.*saved by a different version"):
        check_resume_file(path, RECORD, 40)


def test_list_without_records(path):
    with raises(ValueError, "record = [] has no record"):
        check_resume_file(path, [], 0)
    assert not path.exists()


def test_path_that_is_a_url():
    with raises(ValueError, "is a URL"):
        check_resume_file(Path("gs://bucket/curve.json"), RECORD, 0)


def test_read_only_folder(path):
    """Nothing needs to be written for the same record."""
    check_resume_file(path, RECORD, 0)
    with patch.object(Path, "replace", side_effect=PermissionError(13, "Permission denied")):
        check_resume_file(path, RECORD, 40)
        with pytest.raises(PermissionError):
            check_resume_file(path, COOLED, 30)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("operation", ["write_text", "replace"])
@pytest.mark.parametrize("first", [True, False])
def test_failed_write_leaves_the_file(path, error, operation, first):
    entries = []
    names = []
    step = 0
    if not first:
        check_resume_file(path, RECORD, 0)
        entries = [0]
        names = ["curve.json"]
        step = 30
    with patch.object(Path, operation, side_effect=error), pytest.raises(type(error)):
        check_resume_file(path, COOLED, step)
    assert [file.name for file in path.parent.iterdir()] == names
    check_resume_file(path, COOLED, step)
    assert steps_in(path) == [*entries, step]


# Several processes.


def write_at_once(path, records, step):
    """Let processes, here threads, add entries: each has read the file before any replaces it."""
    replace = Path.replace
    all_have_read = threading.Barrier(len(records))

    def replace_after_all_have_read(new, target):
        all_have_read.wait()
        replace(new, target)

    def start(started):
        check_resume_file(path, started, step)

    with (
        patch.object(Path, "replace", replace_after_all_have_read),
        ThreadPoolExecutor(len(records)) as pool,
    ):
        list(pool.map(start, records))
    assert [file.name for file in path.parent.iterdir()] == ["curve.json"]


def test_processes_of_a_run_write_one_entry(path):
    write_at_once(path, [RECORD] * 4, 0)
    assert steps_in(path) == [0]
    write_at_once(path, [COOLED] * 4, 30)
    assert steps_in(path) == [0, 30]
    check_resume_file(path, COOLED, 45)


def test_run_that_lost_its_entry_cannot_resume(path):
    """Two runs have written into one file at once."""
    records = [RECORD, LOWER_PEAK]
    write_at_once(path, records, 0)
    (entry,) = json.loads(path.read_text())["entries"]
    (kept,) = entry["records"]
    check_resume_file(path, kept, 40)
    records.remove(kept)
    with pytest.raises(ValueError, match="cannot resume at step 40: it was saved with"):
        check_resume_file(path, records[0], 40)


def test_folder_that_cannot_be_written(tmp_path):
    path = tmp_path / "curve.json"
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "curve.json.b87df")
    with (
        patch.object(Path, "replace", side_effect=denied),
        pytest.raises(PermissionError) as caught,
    ):
        check_resume_file(path, RECORD, 0)
    assert caught.value.filename == str(path)
    assert "copy the file" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
