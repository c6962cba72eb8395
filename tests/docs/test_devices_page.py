"""The programs of docs/devices.md on two ranks."""

import re

import pytest
from support.docs.pages import ROOT, sections
from support.programs import Program, rank_environments

pytestmark = pytest.mark.slow

PROGRAMS = [code for section in sections(ROOT / "docs" / "devices.md") if (code := section.python())]
LOOP = "    for epoch in range(done + 1, EPOCHS + 1):\n"
CALL = "            result = step("


def run_on_two_ranks(code, folder, status=0):
    """Return the lines that each rank prints."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    ranks = [Program(file, folder=folder, environment=variables) for variables in rank_environments()]
    ended = [rank.finish() for rank in ranks]
    assert [exit_status for exit_status, _, _ in ended] == [status] * 2, ended
    return [output.splitlines() for _, output, _ in ended]


@pytest.mark.parametrize("code", PROGRAMS, ids=["make_loader", "DistributedSampler"])
def test_ranks_share_each_epoch(code, tmp_path):
    assert code.count(CALL) == 1
    noting = code.replace(CALL, f'{" " * 12}print("rows", *batch[0][:, 0].tolist())\n{CALL}')
    first, second = run_on_two_ranks(noting, tmp_path)
    rows = [[line.split()[1:] for line in lines if line.startswith("rows")] for lines in (first, second)]
    assert [len(batches) for batches in rows] == [32, 32]
    orders = []
    for begin in range(0, 32, 8):
        epoch = [row for batches in rows for batch in batches[begin : begin + 8] for row in batch]
        assert len(set(epoch)) == len(epoch) == 256
        orders.append(epoch)
    assert len(set(map(tuple, orders))) == 4
    assert sorted(orders[0]) == sorted(orders[1])


def test_program_resumes_after_last_whole_epoch(tmp_path):
    code, _ = PROGRAMS
    assert code.count(LOOP) == 1
    interrupted = code.replace(LOOP, f"{LOOP}        if epoch == 3:\n            raise KeyboardInterrupt\n")
    before, _ = run_on_two_ranks(interrupted, tmp_path, status=1)
    after, _ = run_on_two_ranks(code, tmp_path)
    again, _ = run_on_two_ranks(code, tmp_path)
    uninterrupted, _ = run_on_two_ranks(code.replace('"run_devices"', '"run_uninterrupted"'), tmp_path)
    assert (len(before), len(uninterrupted), again) == (2, 4, [])
    assert before + after == uninterrupted
    losses = [float(re.search("loss (.+)", line)[1]) for line in uninterrupted]
    assert losses[-1] < losses[0]
