"""The page's program for a compiled optimizer: no recompilation, and a learning rate of 0."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.trainers.trainers import (
    PAGE_CURVE,
    PAGE_PEAK,
    assert_resumed,
    expected_lrs,
    train,
)

import torch_bridge
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

HEADING = "A compiled optimizer"


@contextmanager
def record_lrs():
    """Record the learning rates before each compiled step. An optimizer hook would be compiled too."""
    torch._dynamo.reset()
    compile, optimizers, used = torch.compile, [], []

    def record_optimizer(optimizer, curve):
        optimizers[:] = [optimizer]
        return lambda_lr(optimizer, curve)

    def record_compiled_step(step):
        compiled = compile(step)

        def recorded():
            used.append([group["lr"].item() for group in optimizers[0].param_groups])
            compiled()

        return recorded

    with (
        patch.object(torch_bridge, "lambda_lr", record_optimizer),
        patch.object(torch, "compile", record_compiled_step),
    ):
        yield used


@torch._dynamo.config.patch(error_on_recompile=True)
def test_resume_matches_uninterrupted_run_without_recompiling(tmp_path):
    expected = np.float32(
        expected_lrs(replace(PAGE_CURVE, init_lr_ratio=0.05), range(200), PAGE_PEAK)
    ).tolist()
    assert_resumed(HEADING, tmp_path, expected, record_lrs)


def test_zero_lr_gives_nan_weights_without_gradient(tmp_path):
    """pytorch/pytorch#126514: if this fails, torch has fixed it, and the page's warning can be removed.

    The program makes one update with an input of 0, so the gradient of that input's weights is 0.
    """
    once = {
        ", init_lr_ratio=0.05": "",
        "range(done + 1, UPDATES + 1)": "[1]",
        "    loss = ": "    inputs[:, 0] = 0\n    loss = ",
    }
    with record_lrs() as used:
        weights = train(HEADING, tmp_path, changes=once).names["model"][0].weight
    assert used == [[0.0]]
    assert weights[:, 0].isnan().all()
    assert weights[:, 1:].isfinite().all()
