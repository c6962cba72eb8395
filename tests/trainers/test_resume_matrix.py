"""No silent resume: trainers with our files, and what changes between a save and a resume."""

import re
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
from support.docs.pages import all_blocks
from trainers import protocols

from plateau_jax import Curve, CurveWarning

TRAINERS = {
    "curve_schedulers.py": protocols.Torchtitan,
    "curve_gpt.py": protocols.MegatronLM,
    "curve_olmo.py": protocols.OLMoCore,
    "curve_schedule.py": protocols.Levanter,
    "curve_litgpt.py": protocols.Litgpt,
    "curve_train.py": protocols.Nanochat,
}
"""Each trainer by the file that a page gives for it."""


@dataclass(frozen=True)
class Job:
    """A configuration: the curve, and the options of the trainer."""

    stages: Any = ((10, 1.0), (40,), (30, 0.0), ("rest",))
    length: int = 100
    peak: float = 0.5
    other_peak: float = 0.25
    """The peak of a second group, where there is one."""

    @property
    def peaks(self):
        return self.peak, self.other_peak


JOB = Job()
IN_PERCENT = Job(stages=(("10%", 1.0), ("40%",), ("30%", 0.0), ("rest",)))


@dataclass(frozen=True)
class TrainerChange:
    """What changes after some updates."""

    before: Job
    after: Job
    saved_at: int = 60

    @property
    def changes_peak(self):
        return self.before.peaks != self.after.peaks


REFUSED = {
    "peak": TrainerChange(JOB, replace(JOB, peak=0.4, other_peak=0.2)),
    "peak of one group": TrainerChange(JOB, replace(JOB, other_peak=0.2)),
    "order of groups": TrainerChange(JOB, replace(JOB, peak=0.25, other_peak=0.5)),
    "length": TrainerChange(IN_PERCENT, replace(IN_PERCENT, length=120)),
    "warmup": TrainerChange(JOB, replace(JOB, stages=((20, 1.0), (30,), (30, 0.0), ("rest",)))),
}
"""Changes after which an earlier learning rate would have been different."""

LEGAL = {
    "none": TrainerChange(JOB, JOB),
    "branch on the plateau": TrainerChange(
        JOB, replace(JOB, stages=((10, 1.0), (20,), (20, 0.0), ("rest",))), saved_at=30
    ),
    "longer plateau": TrainerChange(
        JOB, replace(JOB, stages=((10, 1.0), (60,), (30, 0.0), ("rest",))), saved_at=30
    ),
}


def has_meaning(trainer, change):
    """Return False for a change of a second group under a trainer that has one peak."""
    return trainer.has_groups or change == REFUSED["peak"] or not change.changes_peak


def can_be_wanted(trainer, change):
    """Return False for a peak where `strict=False` does not change it: see the trainer's page."""
    return has_meaning(trainer, change) and (trainer.can_change_peak or not change.changes_peak)


def cells(changes, is_in=has_meaning):
    """Return cells of the matrix as parameters of a test."""
    parameters = []
    for file, trainer in TRAINERS.items():
        for name, change in changes.items():
            if is_in(trainer, change):
                parameters.append(pytest.param(file, change, id=f"{trainer.__name__}-{name}"))
    return pytest.mark.parametrize(("file", "change"), parameters)


def code_of(file):
    """Return the file that a page gives."""
    (code,) = [block.code for block in all_blocks() if block.file == file]
    return code


def with_override(code):
    """Return the file in which a user has said that a change is wanted."""
    pattern = r"((?:check_resume|check_resume_file)\(.*)\)$"
    changed = re.sub(pattern, r"\1, strict=False)", code, flags=re.MULTILINE)
    assert changed != code
    return changed


@contextmanager
def imported(modules):
    """Let imports find these modules. Others, which torch imports late, stay imported."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


@contextmanager
def new_process(file, job, folder, code=None):
    """Start a trainer in a new process. The code is that on the page; "" is the trainer alone."""
    if code is None:
        code = code_of(file)
    trainer = TRAINERS[file]()
    trainer.code = code
    curve_file = ModuleType("curve_file")
    curve_file.curve_for = lambda length: Curve.from_dict(
        {"kind": "staged", "total_steps": length, "stages": job.stages}
    )
    hook = ModuleType("hook")
    peaks = [job.peak]
    if trainer.has_groups:
        peaks.append(job.other_peak)
    modules = trainer.modules | {"curve_file": curve_file, "hook": hook}
    with imported(modules), warnings.catch_warnings():
        if code and not trainer.runs_script:
            exec(code, vars(hook))
            hook.curve_for = curve_file.curve_for  # curve_gpt.py contains it
        else:
            hook = ModuleType("")
        names = {name: value for name, value in vars(hook).items() if not name.startswith("_")}
        trainer.start(protocols.Options(folder, peaks, job.length), names)
        yield trainer


def saved(file, change, folder, code=None):
    """Return the checkpoint of a run, which then continues to update 60."""
    with new_process(file, change.before, folder, code) as trainer:
        trainer.train(change.saved_at)
        checkpoint = trainer.save()
        trainer.train(max(60 - change.saved_at, 0))
        return checkpoint


def check_next_update(trainer, file, change, folder):
    """Compare with a run that was under the new configuration from the start."""
    folder.mkdir()
    with new_process(file, change.after, folder) as uninterrupted:
        uninterrupted.train(change.saved_at + 3)
        expected = uninterrupted.lrs()
    trainer.train(3 - trainer.updates_in_load)
    assert trainer.lrs() == expected


@cells(REFUSED)
def test_changed_schedule_is_refused(file, change, tmp_path):
    checkpoint = saved(file, change, tmp_path)
    with (
        new_process(file, change.after, tmp_path) as trainer,
        pytest.raises(ValueError, match=r"saved with|differ from|could not find"),
    ):
        trainer.load(checkpoint)


@cells(REFUSED, can_be_wanted)
def test_wanted_change_is_applied(file, change, tmp_path):
    """Under `strict=False`, with one warning."""
    checkpoint = saved(file, change, tmp_path)
    code = with_override(code_of(file))
    with new_process(file, change.after, tmp_path, code) as trainer:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.load(checkpoint)
        assert len(caught) == 1
        check_next_update(trainer, file, change, tmp_path / "uninterrupted")


@cells(LEGAL)
def test_legal_change_passes_without_a_word(file, change, tmp_path):
    """Warnings are errors."""
    checkpoint = saved(file, change, tmp_path)
    with new_process(file, change.after, tmp_path) as trainer:
        trainer.load(checkpoint)
        check_next_update(trainer, file, change, tmp_path / "uninterrupted")


def test_run_with_the_curve_of_the_page_can_become_longer():
    page = {}
    exec(code_of("curve_file.py"), page)
    assert page["curve_for"](15_000).same_until(page["curve_for"](10_000), 8_000)


def test_megatrons_file_can_become_longer_by_the_change_of_the_page():
    changes = [block.code for block in all_blocks() if block.language == "diff"]
    (change,) = [code for code in changes if "StagedCurve.wsd(samples" in code]
    removed, added = [line[1:] for line in change.splitlines()]
    code = code_of("curve_gpt.py")
    assert removed in code
    page = {}
    exec("from functools import cache\nfrom plateau_jax import StagedCurve\n", page)
    curves = []
    for line in (removed, added):
        exec(f"@cache\ndef curve_for(samples):\n{line}", page)
        curves.append(page["curve_for"](10_000 * 256))
    planned, longer = curves
    assert longer.total_steps == 20_000 * 256
    assert longer.same_until(planned, 8_000 * 256)


@pytest.mark.parametrize("file", TRAINERS)
def test_checkpoint_without_a_record_gives_one_warning(file, tmp_path):
    checkpoint = saved(file, LEGAL["none"], tmp_path, code="")
    with new_process(file, JOB, tmp_path) as trainer:
        with pytest.warns(CurveWarning) as caught:
            trainer.load(checkpoint)
        assert len(caught) == 1
        again = trainer.save()
    with new_process(file, JOB, tmp_path) as trainer:
        trainer.load(again)
