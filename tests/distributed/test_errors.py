"""Wrong calls of `distribute` and `checkpoint_activations`, and calls in one process that change nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.distributed.distributed_updates import Block, Mixer, Stack
from support.errors import Row, check_error, each, each_row
from support.training.models import Net
from support.training.steps import CURVE
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from torch_bridge import TrainStep, checkpoint_activations, distribute, is_main


def in_block(layer: nn.Module) -> nn.ModuleDict:
    block = Block(4)
    block.extra = layer
    return nn.ModuleDict({"deep": nn.Sequential(nn.ReLU(), block)})


def captured() -> TrainStep:
    model = checkpoint_activations(Stack(), Block)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return TrainStep(model, optimizer, lambda *_: torch.zeros(()), CURVE, cuda_graph=True)


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.SyncBatchNorm(4),
    lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    lambda: spectral_norm(nn.Linear(4, 4)),
    lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
]
MODES: list[Any] = ["ddp", "fsdp", None]
ERRORS: list[Row] = [
    *each(lambda net, value: distribute(net, value, blocks=int), MODES, TypeError,
          "blocks has <class 'int'>"),
    *each(
        lambda net, value: distribute(net, value, blocks=[nn.Linear, nn.LSTM]),
        *(MODES, ValueError, "blocks has LSTM"),
    ),
    *each(lambda net, value: distribute(net, value, unused=True), MODES, TypeError, "['unused']"),
    *each(lambda net, value: distribute(net, value, device="meta"), MODES, ValueError, "device = 'meta'"),
    (lambda net: distribute(net, "dp"), ValueError, "mode = 'dp'"),
    (lambda net: distribute(net, "fsdp", find_unused_parameters=True), TypeError,
     "['find_unused_parameters']"),
    (lambda net: distribute(net, "ddp", reshard_after_forward=True), TypeError, "['reshard_after_forward']"),
    (lambda net: distribute(net, "ddp", module=None), TypeError, "['module']"),
    (lambda stack: checkpoint_activations(stack, "Block"), TypeError, "blocks has 'Block'"),
    (lambda stack: checkpoint_activations(stack, int), TypeError, "blocks has <class 'int'>"),
    (lambda stack: checkpoint_activations(stack, ()), ValueError, "blocks = ()"),
    (lambda stack: checkpoint_activations(stack, (Block, nn.GRU)), ValueError, "blocks has GRU"),
    *each(
        lambda value: checkpoint_activations(in_block(value()), Block),
        *(LAYERS, ValueError, "deep.1.extra", "inside a block"),
    ),
    (lambda: checkpoint_activations(nn.BatchNorm1d(4), nn.Module), ValueError, "the model (BatchNorm1d)"),
    (lambda: captured(), ValueError, "cuda_graph=True", "checkpoint_activations"),
]  # fmt: skip


@each_row(ERRORS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_errors(row: Row) -> None:
    check_error(row, net=Net(), stack=Stack())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_named() -> None:
    check_error((lambda: distribute(Net(), device="cuda"), ValueError, "device = 'cuda'", "available CUDA"))


def test_rejected_model_is_not_checkpointed() -> None:
    """Other blocks may be, next to the layer."""
    model = in_block(nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match="inside a block"):
        checkpoint_activations(model, Block)
    assert not any("forward" in vars(module) for module in model.modules())
    checkpoint_activations(model, Mixer)


def test_layers_without_running_statistics_are_allowed() -> None:
    layers = nn.Sequential(
        nn.BatchNorm1d(4, track_running_stats=False), nn.InstanceNorm1d(4), nn.GroupNorm(2, 4)
    )
    checkpoint_activations(layers, nn.Sequential)(torch.randn(3, 4, 2)).sum().backward()


@pytest.mark.parametrize("mode", MODES)
def test_one_process_gets_its_model_back(mode: Any) -> None:
    model = Stack()
    assert distribute(model, mode, blocks=Block, device="cpu") is model
    assert distribute(model, mode, blocks=[Block, nn.Linear], device=torch.device("cpu")) is model
    options = {"find_unused_parameters": True} if mode == "ddp" else {"reshard_after_forward": False}
    assert distribute(model, mode, device="cpu", **options) is model
    assert is_main()
