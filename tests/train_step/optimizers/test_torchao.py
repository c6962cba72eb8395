"""torchao's optimizers, with moments of few bits: their compiled step needs a tensor as lr."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
from support.training.models import seeded
from torch import nn
from torch._dynamo.utils import counters
from torch.torch_version import TorchVersion

from plateau_jax import PlateauCurve
from torch_bridge import TrainStep, lambda_lr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        TorchVersion(torch.__version__) < "2.11", reason="torchao 0.18 asks for torch 2.11"
    ),
    pytest.mark.filterwarnings("ignore:OptimState.* does not implement _stable_hash_for_caching"),
]

CURVE = PlateauCurve(30, warmup_steps=8, init_lr_ratio=0.1)
PEAK = 0.01


def build(name):
    """Return a model, with a matrix large enough for moments of few bits, and its optimizer."""
    optim = pytest.importorskip("torchao.optim")
    with seeded(0):
        model = nn.Linear(64, 64)
    return model, getattr(optim, name)(model.parameters(), lr=PEAK)


def loss_of(model, inputs):
    return (model(inputs) - inputs).square().mean()


def train_with_step(model, optimizer, inputs):
    step = TrainStep(model, optimizer, loss_of, CURVE)
    return [step(inputs).loss.item() for _ in range(12)]


def train_with_scheduler(model, optimizer, inputs):
    scheduler = lambda_lr(optimizer, CURVE)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_torchaos_optimizers_follow_the_curve(name):
    """In a step and under a scheduler. Only the first update compiles; with a fast backend."""
    with seeded(1):
        inputs = torch.randn(8, 64)
    losses = []
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        for train in (train_with_step, train_with_scheduler):
            torch.compiler.reset()
            model, optimizer = build(name)
            before = counters["stats"]["unique_graphs"]
            losses.append(train(model, optimizer, inputs))
            # One graph for the matrix, and one for the bias.
            assert counters["stats"]["unique_graphs"] == before + 2
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
