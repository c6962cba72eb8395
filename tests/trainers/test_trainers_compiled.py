"""A compiled optimizer under a curve, by the page's program: no recompilation, and a rate of 0."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.trainers.trainers import OF_PAGE, PEAK_OF_PAGE, rates, same_weights, train, whole_and_resumed

import torch_bridge
from torch_bridge import lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

HEADING = "A compiled optimizer"


@contextmanager
def rates_used():
    """A list that gets the rates before each compiled step. A hook of the optimizer would be compiled too."""
    torch._dynamo.reset()
    compile, optimizers, used = torch.compile, [], []

    def noting_the_optimizer(optimizer, curve):
        optimizers[:] = [optimizer]
        return lambda_lr(optimizer, curve)

    def noting_the_rates(step):
        compiled = compile(step)

        def noted():
            used.append([group["lr"].item() for group in optimizers[0].param_groups])
            compiled()

        return noted

    with (
        patch.object(torch_bridge, "lambda_lr", noting_the_optimizer),
        patch.object(torch, "compile", noting_the_rates),
    ):
        yield used


@torch._dynamo.config.patch(error_on_recompile=True)
def test_resume_matches_uninterrupted_run_without_recompiling(tmp_path):
    (whole, used), (resumed, used_later) = whole_and_resumed(HEADING, tmp_path, rates_used)
    wanted = np.float32(rates(replace(OF_PAGE, init_lr_ratio=0.05), range(200), PEAK_OF_PAGE)).tolist()
    assert used == wanted
    assert used_later == wanted[100:]
    assert same_weights(resumed.names["model"], whole.names["model"])


def test_a_rate_of_zero_makes_nan_of_weights_without_gradient(tmp_path):
    """pytorch/pytorch#126514: if this fails, torch has fixed it, and the page's warning can go.

    The program makes one update, with an input that is 0: the gradient of its weights is 0.
    """
    once = {
        ", init_lr_ratio=0.05": "",
        "range(done + 1, UPDATES + 1)": "[1]",
        "    loss = ": "    inputs[:, 0] = 0\n    loss = ",
    }
    with rates_used() as used:
        weights = train(HEADING, tmp_path, changes=once).names["model"][0].weight
    assert used == [[0.0]]
    assert weights[:, 0].isnan().all()
    assert weights[:, 1:].isfinite().all()
