"""The pages' programs on several ranks: accelerate, DDP and FSDP2 saved by DCP, and a loader's shares."""

import numpy as np
import pytest
from support.distributed.processes import run
from support.programs import Program, rank_environments
from support.trainers import accelerate_runs, dcp_runs
from support.trainers.trainers import CURVE, PAGE_CURVE, PAGE_PEAK, expected_lrs, losses, program

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow

CURVES = {1: PAGE_CURVE, 2: PlateauCurve(100, warmup_steps=10, plateaus=[(0, 60)])}
BRANCH = CURVE.cooldown(6, 4)


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_resumes(processes, tmp_path):
    expected = expected_lrs(CURVES[processes], range(200 // processes), PAGE_PEAK)
    for used, used_later, same in run(accelerate_runs.compare_resumed, str(tmp_path), processes=processes):
        assert used == expected
        assert used_later == expected[100 // processes :]
        assert same


@pytest.mark.parametrize("processes", [1, 2])
def test_prepared_scheduler_steps_per_process_and_warns(processes, tmp_path):
    for used, caught in run(accelerate_runs.run_with_prepared_scheduler, str(tmp_path), processes=processes):
        assert used == expected_lrs(CURVES[processes], range(0, 60 * processes, processes), PAGE_PEAK)
        assert [folder for folder, _ in caught] == ["accelerate"] * (processes - 1)
        assert all(accelerate_runs.advice() in text for _, text in caught)


def test_skipped_fp16_update_does_not_move_the_curve(tmp_path):
    (used,) = run(accelerate_runs.run_with_overflow, str(tmp_path), 2, processes=1)
    assert used == expected_lrs(PAGE_CURVE, range(19), PAGE_PEAK)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_dcp_resumes_whatever_it_does_to_the_learning_rates(wrapper, tmp_path):
    def expected(curve, steps):
        exact = expected_lrs(curve, steps)
        return np.float32(exact).tolist() if as_tensor else exact

    for reports in run(dcp_runs.compare_all_resumed, str(tmp_path), wrapper, BRANCH):
        assert len(reports) == 4
        for (as_tensor, lose_lrs), report in reports.items():
            assert report["uninterrupted"] == expected(CURVE, range(12)), lose_lrs
            assert report["resumed"] == expected(CURVE, range(5, 12)), lose_lrs
            assert report["branch"] == expected(BRANCH, range(5, 12)), lose_lrs
            assert report["same"], (as_tensor, lose_lrs)


def run_on_two_ranks(code, folder, status=0):
    """Run a program in the environment of torchrun; return the lines that each rank prints."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    ranks = [Program(file, folder=folder, environment=variables) for variables in rank_environments()]
    ended = [rank.finish() for rank in ranks]
    assert [exit_status for exit_status, _, _ in ended] == [status] * 2, ended
    return [output.splitlines() for _, output, _ in ended]


DDP = "    model = nn.parallel.DistributedDataParallel(model)"
DEVICES = "A program for one or several GPUs"
# A program; changes; the beginning of an iteration that raises a KeyboardInterrupt; the folder of its saves;
# and the numbers of printed losses before it, and in all.
STOPPED = [
    ("DDP and FSDP2", {}, ("        batch =", "update == 120"), "saved_dcp", 5, 10),
    (
        "DDP and FSDP2",
        {"    fully_shard(model)": DDP},
        ("        batch =", "update == 120"),
        "saved_dcp",
        5,
        10,
    ),
    (DEVICES, {}, ("        for batch", "epoch == 3"), "run_devices", 2, 4),
]


@pytest.mark.parametrize(("heading", "changes", "stop", "saved_in", "before", "lines"), STOPPED)
def test_program_resumes_under_torchrun(heading, changes, stop, saved_in, before, lines, tmp_path):
    def printed(more, status=0):
        first, second = run_on_two_ranks(program(heading, changes | more), tmp_path, status)
        return [line for line in first + second if "loss" in line]

    line, condition = stop
    indent = line[: len(line) - len(line.lstrip())]
    interrupt = f"{indent}if {condition}:\n{indent}    raise KeyboardInterrupt\n{line}"
    interrupted, resumed = printed({line: interrupt}, status=1), printed({})
    uninterrupted = printed({saved_in: "saved_whole"})
    assert (len(interrupted), len(uninterrupted)) == (before, lines)
    assert interrupted + resumed == uninterrupted
    assert losses(uninterrupted)[-1] < losses(uninterrupted)[0]


@pytest.mark.parametrize("heading", [DEVICES, "Different samples for each rank"])
def test_ranks_share_each_epoch(heading, tmp_path):
    call = "            result = step("
    code = program(heading, {call: f'{" " * 12}print("rows", *batch[0][:, 0].tolist())\n{call}'})
    rows = [
        [line.split()[1:] for line in lines if line.startswith("rows")]
        for lines in run_on_two_ranks(code, tmp_path)
    ]
    assert [len(batches) for batches in rows] == [32, 32]
    orders = []
    for begin in range(0, 32, 8):
        epoch = [row for batches in rows for batch in batches[begin : begin + 8] for row in batch]
        assert len(set(epoch)) == len(epoch) == 256
        orders.append(epoch)
    assert len(set(map(tuple, orders))) == 4
    assert sorted(orders[0]) == sorted(orders[1])
