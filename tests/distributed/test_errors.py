"""Wrong calls of `distribute` and `checkpoint_activations`, and those that change nothing."""

import pytest
import torch
from distributed.blocks import DebugBlock, Mixer, Stack
from support.training.models import Net, mean_loss
from support.training.steps import CURVE
from support.wrong import wrong
from torch import nn
from torch.nn import Module
from torch.nn.utils import parametrizations, spectral_norm

from torch_bridge import TrainStep, checkpoint_activations, distribute, is_main


@pytest.fixture
def model():
    return Net()


@pytest.fixture
def stack():
    return Stack()


# `distribute`.


@wrong(ValueError, "mode = 'dp'")
def test_unknown_mode(model):
    distribute(model, "dp")


@wrong(TypeError, "blocks has <class 'int'>")
def test_blocks_of_a_class_that_is_not_a_module(model):
    distribute(model, blocks=int)


@wrong(ValueError, "blocks has LSTM")
def test_blocks_that_the_model_has_not(model):
    distribute(model, blocks=[nn.Linear, nn.LSTM])


@wrong(ValueError, "device = 'meta'", "available CUDA")
def test_device_without_memory(model):
    distribute(model, device="meta")


@pytest.mark.parametrize("mode", ["ddp", "fsdp", None])
def test_one_process_gets_its_model_back(mode):
    model = Stack()
    cpu = torch.device("cpu")
    blocks = [DebugBlock, nn.Linear]
    assert distribute(model, mode, blocks=DebugBlock, device="cpu") is model
    assert distribute(model, mode, blocks=blocks, device=cpu) is model
    options = {"reshard_after_forward": False}
    if mode == "ddp":
        options = {"find_unused_parameters": True}
    assert distribute(model, mode, device="cpu", **options) is model
    assert is_main()


# `checkpoint_activations`.


@wrong(TypeError, "blocks has 'Block'")
def test_name_of_a_block(stack):
    checkpoint_activations(stack, "Block")


@wrong(ValueError, "blocks = ()")
def test_no_blocks(stack):
    checkpoint_activations(stack, ())


@wrong(ValueError, "cuda_graph=True", "checkpoint_activations")
def test_captured_step_of_a_checkpointed_model(stack):
    checkpoint_activations(stack, DebugBlock)
    optimizer = torch.optim.AdamW(stack.parameters(), fused=True)
    TrainStep(stack, optimizer, mean_loss, CURVE, cuda_graph=True)


# Layers that change their state in a forward pass would do so twice.


def model_with_a_layer_in_its_block(layer):
    block = DebugBlock(4)
    block.extra = layer
    return nn.ModuleDict({"deep": nn.Sequential(nn.ReLU(), block)})


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
        spectral_norm(nn.Linear(4, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
    ],
)
def test_layer_that_changes_its_state(layer):
    model = model_with_a_layer_in_its_block(layer)
    with pytest.raises(ValueError, match=r"deep\.1\.extra.*inside a block"):
        checkpoint_activations(model, DebugBlock)
    for module in model.modules():
        assert "forward" not in vars(module)
    checkpoint_activations(model, Mixer)  # next to the layer


@wrong(ValueError, "the model (BatchNorm1d)")
def test_model_that_changes_its_state():
    checkpoint_activations(nn.BatchNorm1d(4), Module)


def test_layers_without_running_statistics_are_allowed():
    model = nn.Sequential(
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.InstanceNorm1d(4),
        nn.GroupNorm(2, 4),
    )
    checkpoint_activations(model, nn.Sequential)
    outputs = model(torch.randn(3, 4, 2))
    outputs.sum().backward()
