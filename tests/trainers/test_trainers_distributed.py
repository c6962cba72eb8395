"""The page's program for DDP and FSDP2, saved by `torch.distributed.checkpoint`."""

import subprocess
import sys

import numpy as np
import pytest
from support.distributed.processes import run
from support.programs import Program, rank_environments
from support.trainers import dcp_runs
from support.trainers.trainers import CURVE, expected_lrs, losses, program

pytestmark = pytest.mark.slow

BRANCH = CURVE.cooldown(6, 4)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_resume_matches_uninterrupted_run(wrapper, tmp_path):
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


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_program_resumes_under_torchrun(wrapper, tmp_path):
    """torchrun itself, which imports torch in three processes, starts one of the six runs."""
    wrap = "model = nn.parallel.DistributedDataParallel(model)" if wrapper == "ddp" else "fully_shard(model)"
    stop = "        if update == 120:\n            raise KeyboardInterrupt\n        batch ="

    def write(changes):
        file = tmp_path / "program.py"
        file.write_text(program("DDP and FSDP2", {"    fully_shard(model)": f"    {wrap}"} | changes))
        return file

    def printed(changes, status=0):
        file = write(changes)
        ranks = [Program(file, folder=tmp_path, environment=variables) for variables in rank_environments()]
        ended = [rank.finish() for rank in ranks]
        assert [exit_status for exit_status, _, _ in ended] == [status] * 2, ended
        return [line for _, output, _ in ended for line in output.splitlines() if "loss" in line]

    before = printed({"        batch =": stop}, status=1)
    after = printed({})
    if wrapper == "fsdp":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        file = write({"saved_dcp": "saved_whole"})
        output = subprocess.run(
            [*command, str(file)], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
        )
        uninterrupted = [line for line in output.stdout.splitlines() if "loss" in line]
    else:
        uninterrupted = printed({"saved_dcp": "saved_whole"})
    assert (len(before), len(after), len(uninterrupted)) == (5, 5, 10)
    assert before + after == uninterrupted
    assert losses(uninterrupted)[-1] < losses(uninterrupted)[0]
