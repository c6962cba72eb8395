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


@raises(ValueError, "mode = 'dp'")
def test_unknown_mode(model):
    distribute(model, "dp")


@raises(TypeError, "blocks has <class 'int'>")
def test_blocks_of_a_class_that_is_not_a_module(model):
    distribute(model, blocks=int)


@raises(ValueError, "blocks has LSTM")
def test_blocks_that_the_model_has_not(model):
    distribute(model, blocks=[nn.Linear, nn.LSTM])


@raises(ValueError, "device = 'meta'", "available CUDA")
def test_device_without_memory(model):
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
