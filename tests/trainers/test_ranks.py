"""The pages' programs under torchrun; and schedulers built before DeepSpeed's engine."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.distributed.processes import run
from support.docs.pages import PAGES, sections
from support.programs import Program, rank_environments
from support.schedulers.runs import learning_rate
from support.trainers.deepspeed_runs import Plan, run_program, train_and_resume
from support.trainers.trainers import CURVE, PAGE_CURVE, PAGE_PEAK, losses, program

from plateau_jax import Curve, PlateauCurve

pytestmark = pytest.mark.slow


def run_on_two_ranks(code, folder, status=0):
    """Run a program in torchrun's environment; return the lines and warnings of each rank."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    ranks = [
        Program(file, folder=folder, environment=variables | {"ACCELERATE_USE_CPU": "true"})
        for variables in rank_environments()
    ]
    ended = [rank.finish() for rank in ranks]
    assert [exit_status for exit_status, _, _ in ended] == [status] * 2, ended
    return [output.splitlines() for _, output, _ in ended], [errors for *_, errors in ended]


def assert_printed_lrs(lines, curve, steps_per_update=1):
    """Check the learning rates that the lines "update 20: loss 1.2345, lr 6.78e-03" show."""
    shown = re.findall(r"^update (\d+): .+, lr (\S+)$", "\n".join(lines), re.MULTILINE)
    steps = [steps_per_update * (int(update) - 1) for update, _ in shown]
    assert [lr for _, lr in shown] == [
        f"{learning_rate(PAGE_PEAK, curve, step):.2e}" for step in steps
    ]
    assert len(shown) == len(lines) > 0


DDP = "    model = nn.parallel.DistributedDataParallel(model)"
DEVICES = "A program for one or several GPUs"
DCP_STOP, ACCELERATE_STOP = (
    ("        batch =", "update == 120"),
    ("    with accelerator.acc", "update == 55"),
)
HALF = PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])
# A program; changes; the beginning of an iteration that raises a KeyboardInterrupt; the folder of
# its saves; the numbers of printed losses before it, and in all; and the curve whose learning rates
# it prints.
STOPPED = [
    ("DDP and FSDP2", {}, DCP_STOP, "saved_dcp", 5, 10, PAGE_CURVE),
    ("DDP and FSDP2", {"    fully_shard(model)": DDP}, DCP_STOP, "saved_dcp", 5, 10, PAGE_CURVE),
    ("accelerate", {}, ACCELERATE_STOP, "saved_accelerate", 2, 5, HALF),
    (DEVICES, {}, ("        for batch", "epoch == 3"), "run_devices", 2, 4, None),
]


SHOWS_GROUP = """
print("process group:", torch.distributed.is_initialized())
"""


@pytest.mark.parametrize(
    ("heading", "changes", "stop", "saved_in", "before", "lines", "curve"), STOPPED
)
def test_program_resumes_under_torchrun(
    heading, changes, stop, saved_in, before, lines, curve, tmp_path
):
    """And if the program destroys its process group, it does so on both ranks."""

    def printed(more, status=0):
        code = program(heading, changes | more)
        (first, second), _ = run_on_two_ranks(code + SHOWS_GROUP, tmp_path, status)
        if (
            re.search(r"^ +distributed\.destroy_process_group\(\)$", code, re.MULTILINE)
            and status == 0
        ):
            assert [first[-1], second[-1]] == ["process group: False"] * 2
        return [line for line in first + second if "loss" in line]

    line, condition = stop
    indent = line[: len(line) - len(line.lstrip())]
    interrupt = f"{indent}if {condition}:\n{indent}    raise KeyboardInterrupt\n{line}"
    interrupted, resumed = printed({line: interrupt}, status=1), printed({})
    uninterrupted = printed({saved_in: "saved_whole"})
    assert (len(interrupted), len(uninterrupted)) == (before, lines)
    assert interrupted + resumed == uninterrupted
    assert losses(uninterrupted)[-1] < losses(uninterrupted)[0]
    if curve:
        assert_printed_lrs(uninterrupted, curve)


BUILD = "scheduler = lambda_lr(optimizer, curve)"
PREPARED = {BUILD: "scheduler = accelerator.prepare(lambda_lr(optimizer, curve))"}
ADVICE = "clock=DataClock(accelerator.num_processes, count=1)"
COUNTING_PROCESSES = {
    "import PlateauCurve": "import DataClock, PlateauCurve",
    BUILD: f"scheduler = accelerator.prepare(lambda_lr(optimizer, curve, {ADVICE}))",
}


def test_prepared_scheduler_steps_per_process_and_warns(tmp_path):
    (first, _), warnings = run_on_two_ranks(program("accelerate", PREPARED), tmp_path)
    assert_printed_lrs([line for line in first if "loss" in line], HALF, steps_per_update=2)
    for text in warnings:
        assert re.search(r"accelerate.\w+\.py:\d+: CurveWarning: ", text)
        assert f"build the scheduler with {ADVICE}" in text


def test_prepared_scheduler_may_count_the_processes(tmp_path):
    (first, _), warnings = run_on_two_ranks(program("accelerate", COUNTING_PROCESSES), tmp_path)
    assert_printed_lrs([line for line in first if "loss" in line], HALF)
    assert not any("CurveWarning" in text for text in warnings)


@pytest.mark.parametrize("heading", [DEVICES, "Different samples for each rank"])
def test_ranks_share_each_epoch(heading, tmp_path):
    call = "            result = step("
    code = program(heading, {call: f'{" " * 12}print("rows", *batch[0][:, 0].tolist())\n{call}'})
    rows = [
        [line.split()[1:] for line in lines if line.startswith("rows")]
        for lines in run_on_two_ranks(code, tmp_path)[0]
    ]
    assert [len(batches) for batches in rows] == [32, 32]
    orders = []
    for begin in range(0, 32, 8):
        epoch = [row for batches in rows for batch in batches[begin : begin + 8] for row in batch]
        assert len(set(epoch)) == len(epoch) == 256
        orders.append(epoch)
    assert len(set(map(tuple, orders))) == 4
    assert sorted(orders[0]) == sorted(orders[1])


# `.[libraries]` installs it on Linux.
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")

LINEAR = PlateauCurve(12, decay_shape="linear")
DROPPED = PlateauCurve(9, warmup_steps=4)
"""The curve of a group that DeepSpeed drops."""

RUNS: dict[str, tuple[Sequence[float | None], Curve | Sequence[Curve]]] = {
    "no group is dropped": ([0.25, 0.01], CURVE),
    "the last group is dropped": ([0.25, None], CURVE),
    "a group in between is dropped": ([0.25, None, 0.01], CURVE),
    "a curve for each group": ([0.25, 0.01], [CURVE, LINEAR]),
    "the first of several curves is dropped": ([None, 0.25, 0.01], [DROPPED, CURVE, LINEAR]),
    # DeepSpeed steps the optimizer once for each group, which must not look like too few scheduler
    # steps.
    "many groups": ([0.01] * 24, PlateauCurve(80)),
}
"""The peak of each group, None for a group without parameters, and the curves."""


def expected_lrs(plan: Plan) -> list[list[float]]:
    curves = [plan.curve] * len(plan.peaks) if isinstance(plan.curve, Curve) else plan.curve
    pairs = [
        (peak, curve) for peak, curve in zip(plan.peaks, curves, strict=True) if peak is not None
    ]
    return [
        [learning_rate(peak, curve, step) for peak, curve in pairs] for step in range(plan.updates)
    ]


@needs_deepspeed
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_groups_keep_their_curves_and_resume(stage: int, tmp_path: Path) -> None:
    """Without a `CurveWarning`, which would be an error."""
    plans = [Plan(stage, *options) for options in RUNS.values()]
    (records,) = run(train_and_resume, plans, tmp_path, processes=1)
    for name, plan, (uninterrupted, resumed) in zip(RUNS, plans, records, strict=True):
        half = plan.updates // 2
        assert uninterrupted.used == uninterrupted.last_lrs == expected_lrs(plan), name
        assert resumed.used == resumed.last_lrs == uninterrupted.used[half:], name
        assert resumed.losses == uninterrupted.losses[-len(resumed.losses) :], name


(PAGE,) = (
    section for page in PAGES for section in sections(page) if section.heading == "DeepSpeed"
)
OF_PAGE = PlateauCurve(1000, warmup_steps=100)
BUILT_BEFORE, STEP = "lambda_lr(optimizer, PlateauCurve(1_000, warmup_steps=100)", "engine.step("
PROGRAMS = {
    "unchanged": ({}, list(range(10))),
    "samples": (
        {
            "import PlateauCurve": "import DataClock, PlateauCurve",
            BUILT_BEFORE: f"{BUILT_BEFORE}, clock=DataClock(8)",
            STEP: f'{STEP}lr_kwargs={{"count": 20}}',
        },
        [20 * update // 8 for update in range(10)],
    ),
    "a hold rule": (
        {
            "import PlateauCurve": "import HoldBelow, PlateauCurve",
            BUILT_BEFORE: f"{BUILT_BEFORE}, clock=HoldBelow(0.5, 4)",
            STEP: f'{STEP}lr_kwargs={{"metric": 0.1}}',
        },
        [0, 0, 0, 0, 0, 1, 2, 3, 4, 5],
    ),
}
"""Changes to the program on the page, and the step of the curve before each update."""


@needs_deepspeed
@pytest.mark.parametrize(("changes", "steps"), PROGRAMS.values(), ids=PROGRAMS)
def test_program_uses_the_curve(changes: dict[str, str], steps: list[int], tmp_path: Path) -> None:
    code = "".join(block.code for block in PAGE.blocks)
    for old, new in changes.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    ((used, state),) = run(run_program, code, tmp_path, processes=1)
    assert used == [[learning_rate(0.01, OF_PAGE, step)] for step in steps]
    assert state["last_epoch"] == len(used)
    assert (tmp_path / "saved_deepspeed" / "10").is_dir()


CONFIG = (
    '{"train_micro_batch_size_per_gpu": 128, "gradient_accumulation_steps": 2, '
    '"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}'
)
PLUGIN = f"deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={CONFIG})"
THROUGH = {
    "Hugging Face Trainer": ({"use_cpu=True": f"deepspeed={CONFIG}"}, 2),
    "accelerate": (
        {
            "import Accelerator": "import Accelerator, DeepSpeedPlugin",
            "gradient_accumulation_steps=MICRO_BATCHES": PLUGIN,
        },
        1,
    ),
}
"""Changes that make a program train in DeepSpeed's engine, and its number of groups."""


@needs_deepspeed
@pytest.mark.parametrize("heading", THROUGH)
def test_other_trainers_use_the_curve_in_deepspeed(heading: str, tmp_path: Path) -> None:
    changes, groups = THROUGH[heading]
    ((used, state),) = run(run_program, program(heading, changes), tmp_path, processes=1)
    # The engine steps one group at a time.
    assert used == [
        [learning_rate(PAGE_PEAK, PAGE_CURVE, step)] for step in range(200) for _ in range(groups)
    ]
    assert state["last_epoch"] == 200
