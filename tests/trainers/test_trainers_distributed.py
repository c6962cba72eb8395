"""DDP and FSDP2 under a curve, saved by `torch.distributed.checkpoint`, by the page's program."""

import subprocess
import sys

import numpy as np
import pytest
from support import dcp_trainings
from support.processes import run
from support.trainers import CURVE, losses, program, rates

pytestmark = pytest.mark.slow

BRANCH = CURVE.cooldown(6, 4)


@pytest.mark.parametrize("lost", [False, True], ids=["", "rates lost"])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_resumed_it_is_as_uninterrupted(wrapper, as_tensor, lost, tmp_path):
    def wanted(curve, steps):
        exact = rates(curve, steps)
        return np.float32(exact).tolist() if as_tensor else exact

    for report in run(dcp_trainings.resumed, str(tmp_path), wrapper, as_tensor, BRANCH, lost):
        assert report["whole"] == wanted(CURVE, range(12))
        assert report["resumed"] == wanted(CURVE, range(5, 12))
        assert report["branch"] == wanted(BRANCH, range(5, 12))
        assert report["same"]


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_the_program_goes_on_under_torchrun(wrapper, tmp_path):
    wrap = "model = nn.parallel.DistributedDataParallel(model)" if wrapper == "ddp" else "fully_shard(model)"
    stop = "        if update == 120:\n            raise KeyboardInterrupt\n        everything ="

    def printed(changes, status=0):
        file = tmp_path / "program.py"
        file.write_text(program("DDP and FSDP2", {"    fully_shard(model)": f"    {wrap}"} | changes))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        ended = subprocess.run([*torchrun, str(file)], cwd=tmp_path, capture_output=True, text=True)
        assert (ended.returncode != 0) == status, ended.stderr
        return [line for line in ended.stdout.splitlines() if "loss" in line]

    before = printed({"        everything =": stop}, status=1)
    after = printed({})
    whole = printed({"saved_dcp": "saved_whole"})
    assert (len(before), len(after), len(whole)) == (5, 5, 10)
    assert before + after == whole
    assert losses(whole)[-1] < losses(whole)[0]
