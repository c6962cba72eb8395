"""DDP and FSDP2 under a curve, saved by `torch.distributed.checkpoint`, with the README's lines."""

import numpy as np
import pytest
from support import dcp_trainings
from support.processes import run
from support.trainers import CURVE, rates

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
