"""Schedulers that are built before DeepSpeed's engine."""

from importlib.util import find_spec

import pytest
from support.distributed.processes import RankGroup
from support.docs.pages import section_named
from support.schedulers.runs import learning_rate
from trainers.deepspeed_runs import Plan, run_program, train_and_resume
from trainers.runs import replaced

from plateau_jax import PlateauCurve

pytestmark = [
    pytest.mark.slow,
    # `.[libraries]` installs it on Linux.
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed"),
]

CURVE = PlateauCurve(12, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
LINEAR = PlateauCurve(12, decay_shape="linear")
DROPPED = PlateauCurve(9, warmup_steps=4)
"""The curve of a group that DeepSpeed drops."""


RUNS = {
    "no group is dropped": ([0.25, 0.01], CURVE),
    "the last group is dropped": ([0.25, None], CURVE),
    "a group in between is dropped": ([0.25, None, 0.01], CURVE),
    "a curve for each group": ([0.25, 0.01], [CURVE, LINEAR]),
    "the first of several curves is dropped": ([None, 0.25, 0.01], [DROPPED, CURVE, LINEAR]),
    # DeepSpeed steps the optimizer once for each group, which must not look like too few scheduler
    # steps.
    "many groups": ([0.01] * 24, PlateauCurve(200)),
}
"""The peak of each group, None for a group without parameters, and the curves."""
RUNS_OF_SEVERAL_CURVES = ["a curve for each group", "the first of several curves is dropped"]


@pytest.fixture(scope="module")
def process():
    """A process that imports DeepSpeed once for all tests, until one of them ends it."""
    group = RankGroup(1)
    yield group
    group.close()


def expected_lrs(plan):
    lrs = []
    for step in range(plan.updates):
        lrs_of_groups = []
        for peak, curve in zip(plan.peaks, plan.curves(), strict=True):
            if peak is not None:
                lrs_of_groups.append(learning_rate(peak, curve, step))
        lrs.append(lrs_of_groups)
    return lrs


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_groups_keep_their_curves_and_resume(stage, tmp_path, process):
    """Without a `CurveWarning`, which would be an error."""
    runs = dict(RUNS)
    if stage == 3:
        for name in RUNS_OF_SEVERAL_CURVES:
            del runs[name]
    plans = [Plan(stage, *options) for options in runs.values()]
    (records,) = process.call(train_and_resume, plans, tmp_path)
    for name, plan, (uninterrupted, resumed) in zip(runs, plans, records, strict=True):
        lrs = expected_lrs(plan)
        assert uninterrupted.used == lrs, name
        half = plan.updates // 2
        assert resumed.used == lrs[half:], name
        count = len(resumed.losses)
        assert resumed.losses == uninterrupted.losses[-count:], name


@pytest.mark.parametrize("name", RUNS_OF_SEVERAL_CURVES)
def test_groups_with_several_curves_cannot_resume_in_stage_3(name, tmp_path, process):
    """Its load replaces the groups, and then their lists of parameters."""
    plans = [Plan(3, *RUNS[name])]
    with pytest.raises(AssertionError, match=r"param_groups\[0\] is new, and has no curve"):
        process.call(train_and_resume, plans, tmp_path)


BUILT_BEFORE = "lambda_lr(optimizer, PlateauCurve(1_000, warmup_steps=100)"
STEP = "engine.step("
COUNTS_SAMPLES = {
    "import PlateauCurve": "import DataClock, PlateauCurve",
    BUILT_BEFORE: f"{BUILT_BEFORE}, clock=DataClock(8)",
    STEP: f'{STEP}lr_kwargs={{"count": 20}}',
}
HOLDS = {
    "import PlateauCurve": "import HoldBelow, PlateauCurve",
    BUILT_BEFORE: f"{BUILT_BEFORE}, clock=HoldBelow(0.5, 4)",
    STEP: f'{STEP}lr_kwargs={{"metric": 0.1}}',
}
PROGRAMS = {
    "unchanged": ({}, list(range(10))),
    "samples": (COUNTS_SAMPLES, [20 * update // 8 for update in range(10)]),
    "a hold rule": (HOLDS, [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]),
}
"""Changes to the program on the page, and the step of the curve before each update."""


@pytest.mark.parametrize(("changes", "steps"), PROGRAMS.values(), ids=PROGRAMS)
def test_program_uses_the_curve(changes, steps, tmp_path, process):
    blocks = section_named("DeepSpeed").blocks
    page_code = "".join(block.code for block in blocks)
    code = replaced(page_code, changes)
    ((used, state),) = process.call(run_program, code, tmp_path)
    curve = PlateauCurve(1000, warmup_steps=100)
    expected = [[learning_rate(0.01, curve, step)] for step in steps]
    assert used == expected
    assert state["last_epoch"] == len(used)
    assert (tmp_path / "saved_deepspeed" / "10").is_dir()
