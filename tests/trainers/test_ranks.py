"""The pages' programs under torchrun: accelerate, DDP and FSDP2 saved by DCP, and a loader's shares."""

import re

import pytest
from support.programs import Program, rank_environments
from support.schedulers.runs import learning_rate
from support.trainers.trainers import PAGE_CURVE, PAGE_PEAK, losses, program

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow


def run_on_two_ranks(code, folder, status=0):
    """Run a program in the environment of torchrun; return the lines and the warnings of each rank."""
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
    assert [lr for _, lr in shown] == [f"{learning_rate(PAGE_PEAK, curve, step):.2e}" for step in steps]
    assert len(shown) == len(lines) > 0


DDP = "    model = nn.parallel.DistributedDataParallel(model)"
DEVICES = "A program for one or several GPUs"
DCP_STOP, ACCELERATE_STOP = ("        batch =", "update == 120"), ("    with accelerator.acc", "update == 55")
HALF = PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])
# A program; changes; the beginning of an iteration that raises a KeyboardInterrupt; the folder of its saves;
# the numbers of printed losses before it, and in all; and the curve whose learning rates it prints.
STOPPED = [
    ("DDP and FSDP2", {}, DCP_STOP, "saved_dcp", 5, 10, PAGE_CURVE),
    ("DDP and FSDP2", {"    fully_shard(model)": DDP}, DCP_STOP, "saved_dcp", 5, 10, PAGE_CURVE),
    ("accelerate", {}, ACCELERATE_STOP, "saved_accelerate", 2, 5, HALF),
    (DEVICES, {}, ("        for batch", "epoch == 3"), "run_devices", 2, 4, None),
]


@pytest.mark.parametrize(("heading", "changes", "stop", "saved_in", "before", "lines", "curve"), STOPPED)
def test_program_resumes_under_torchrun(heading, changes, stop, saved_in, before, lines, curve, tmp_path):
    def printed(more, status=0):
        (first, second), _ = run_on_two_ranks(program(heading, changes | more), tmp_path, status)
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
