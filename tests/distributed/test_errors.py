"""Wrong calls of `distribute`, and those that change nothing."""

import pytest
import torch
from support.raises import raises
from support.training.models import Net
from torch import nn

from torch_bridge import distribute


@pytest.fixture
def model():
    return Net()


def test_wrong_call(model):
    with raises(ValueError, "mode = 'dp'", unchanged=[model]):
        distribute(model, "dp")
    with raises(TypeError, "blocks has 'Linear'; it must be a class", unchanged=[model]):
        distribute(model, blocks=["Linear"])
    with raises(ValueError, "blocks has LSTM", unchanged=[model]):
        distribute(model, blocks=[nn.Linear, nn.LSTM])
    with raises(ValueError, "device = 'meta'", "available CUDA", unchanged=[model]):
        distribute(model, device="meta")


@pytest.mark.parametrize("mode", ["ddp", "fsdp", None])
def test_one_process_gets_its_model_back(model, mode):
    cpu = torch.device("cpu")
    blocks = [nn.Dropout, nn.Linear]
    assert distribute(model, mode, blocks=nn.Linear, device="cpu") is model
    assert distribute(model, mode, blocks=blocks, device=cpu) is model
    options = {"reshard_after_forward": False}
    if mode == "ddp":
        options = {"find_unused_parameters": True}
    assert distribute(model, mode, device="cpu", **options) is model
