"""A model with activation checkpointing trains like the plain one, bit for bit, in less memory."""

import copy
import pickle
from functools import partial
from unittest.mock import patch

import pytest
import torch
from distributed.blocks import DebugBlock, Mixer, Stack, gradients_of
from hypothesis import given, strategies as st
from support.examples import examples
from support.training.models import batches, carried_loss
from support.training.steps import make_step
from support.trees import assert_equal_trees
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from torch_bridge import checkpoint_activations

blocks_of_a_stack = st.sampled_from(
    [DebugBlock, Mixer, (DebugBlock, Mixer), [nn.Linear, Mixer], nn.LSTMCell, Stack]
)


@examples(30)
@given(
    first_blocks=blocks_of_a_stack,
    more_blocks=blocks_of_a_stack,
    precision=st.sampled_from(["fp32", "bf16"]),
    training=st.booleans(),
)
def test_checkpointed_model_has_same_bits(first_blocks, more_blocks, precision, training):
    plain = Stack().train(training)
    model = Stack().train(training)
    assert checkpoint_activations(model, first_blocks) is model
    checkpoint_activations(model, more_blocks)
    expected = gradients_of(plain, precision=precision)
    assert_equal_trees(gradients_of(model, precision=precision), expected)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert list(dict(model.named_modules())) == list(dict(plain.named_modules()))


class Passes:
    """Counts how often the mixers of a model run."""

    def __init__(self, model):
        self.count = 0
        for module in model.modules():
            if isinstance(module, Mixer):
                module.wide.register_forward_hook(self._add_pass)

    def _add_pass(self, *_):
        self.count += 1


def test_block_reruns_once_and_only_for_gradients():
    model = checkpoint_activations(Stack(), DebugBlock)
    checkpoint_activations(model, (DebugBlock,))
    passes = Passes(model)
    gradients_of(model, updates=1)
    assert passes.count == 6  # three in the forward pass, and three in the backward pass
    for context in (torch.no_grad(), torch.inference_mode()):
        passes.count = 0
        with context:
            outputs, _ = model(torch.ones(5, 3), (torch.ones(5, 4), torch.ones(5, 4)))
        assert not outputs.requires_grad
        assert passes.count == 3


def saved_bytes(model, inputs):
    """Return the memory that a forward pass keeps for the backward pass, besides parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = {}

    def count(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unchanged(tensor):
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, unchanged):
        loss = model(inputs).sum()
    del loss
    return sum(sizes.values())


def test_only_the_inputs_of_blocks_are_kept():
    width = 16
    depth = 6
    model = nn.Sequential(*(Mixer(width) for _ in range(depth)))
    inputs = torch.randn(32, width, requires_grad=True)
    before = saved_bytes(model, inputs)
    checkpoint_activations(model, Mixer)
    after = saved_bytes(model, inputs)
    assert after == depth * inputs.nbytes
    assert after < before / 4


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_copies_are_checkpointed_and_independent(copied):
    original = checkpoint_activations(Stack(), DebugBlock)
    copied_model = copied(original)
    passes = Passes(copied_model)
    passes_of_original = Passes(original)
    assert_equal_trees(gradients_of(copied_model), gradients_of(Stack()))
    assert passes.count == 12
    assert passes_of_original.count == 0
    checkpoint_activations(copied_model, DebugBlock)  # changes nothing
    assert_equal_trees(gradients_of(original), gradients_of(Stack()))


def train_compiled(model):
    """Return the losses and the weights of a compiled run."""
    carry = torch.zeros(4, 4), torch.zeros(4, 4)
    without_graph_breaks = partial(torch.compile, backend="aot_eager", fullgraph=True)
    with patch.object(torch, "compile", without_graph_breaks):
        step = make_step(
            "adamw", model, carried_loss, carry=carry, precision="bf16", compile=True, max_norm=1.0
        )
    torch.manual_seed(2)
    losses = [
        step(*micro_batches).loss
        for micro_batches in zip(batches(3), batches(3, seed=1), strict=True)
    ]
    return losses, list(model.parameters())


@pytest.mark.slow
def test_compiled_step_has_same_bits():
    expected = train_compiled(Stack())
    assert_equal_trees(train_compiled(checkpoint_activations(Stack(), DebugBlock)), expected)


# Under wrappers for several ranks.


def shard_each(model, kind):
    for module in model.modules():
        if isinstance(module, kind):
            fully_shard(module)


def fsdp_of_blocks(model):
    shard_each(model, DebugBlock)
    return fully_shard(model)


def fsdp_within_blocks(model):
    shard_each(model, Mixer)
    shard_each(model, DebugBlock)
    return fully_shard(model)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("blocks", [DebugBlock, (DebugBlock, Mixer)])
@pytest.mark.parametrize(
    "wrap", [DistributedDataParallel, fully_shard, fsdp_of_blocks, fsdp_within_blocks]
)
def test_wrapped_model_has_same_bits(wrap, blocks):
    """Checkpointing may come before or after wrapping."""
    order = (0, 1, 0)
    if wrap is fsdp_within_blocks and TorchVersion(torch.__version__) < "2.11":
        # The second pass of a block that is used again would find the modules inside it resharded.
        order = (0, 1)
    plain = wrap(Stack(order=order))
    before = wrap(checkpoint_activations(Stack(order=order), blocks))
    after = checkpoint_activations(wrap(Stack(order=order)), blocks)
    expected = gradients_of(plain)
    assert_equal_trees(gradients_of(before), expected)
    assert_equal_trees(gradients_of(after), expected)
