"""A model with activation checkpointing trains like the plain one, bit for bit, and keeps less memory."""

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, strategies as st
from support.distributed.blocks import Block, Mixer, Stack, gradients_of
from support.examples import examples
from support.training.models import batches, carried_loss
from support.training.steps import equal_trees, make_step
from torch import Tensor, nn

from torch_bridge import checkpoint_activations

_BLOCKS = st.sampled_from([Block, Mixer, (Block, Mixer), [nn.Linear, Mixer], nn.LSTMCell, Stack])


@examples(30)
@given(_BLOCKS, _BLOCKS, st.sampled_from(["fp32", "bf16"]), st.booleans())
def test_checkpointed_model_has_same_bits(blocks: Any, more: Any, precision: str, training: bool) -> None:
    plain, model = Stack().train(training), Stack().train(training)
    assert checkpoint_activations(model, blocks) is model
    checkpoint_activations(model, more)
    expected = gradients_of(plain, precision=precision)
    assert equal_trees(gradients_of(model, precision=precision), expected)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]


def _record_passes(model: nn.Module) -> list[str]:
    """Return a list that gets an entry each time a mixer runs."""
    passes: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, Mixer):
            module.wide.register_forward_hook(lambda *_, name=name: passes.append(name))
    return passes


def test_block_reruns_once_and_only_for_gradients() -> None:
    model = checkpoint_activations(checkpoint_activations(Stack(), Block), (Block,))
    passes = _record_passes(model)
    gradients_of(model, updates=1)
    assert len(passes) == 6
    passes.clear()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            outputs, _ = model(torch.ones(5, 3), (torch.ones(5, 4), torch.ones(5, 4)))
        assert not outputs.requires_grad
    assert len(passes) == 6


def _saved_bytes(model: nn.Module, inputs: Tensor) -> int:
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = model(inputs).sum()
    del loss
    return sum(saved.values())


def test_only_the_inputs_of_blocks_are_kept() -> None:
    width, rows, depth = 16, 32, 6
    plain = nn.Sequential(*(Mixer(width) for _ in range(depth)))
    inputs = torch.randn(rows, width, requires_grad=True)
    before = _saved_bytes(plain, inputs)
    after = _saved_bytes(checkpoint_activations(plain, Mixer), inputs)
    assert after == depth * inputs.nbytes
    assert after < before / 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_checkpointed_and_independent(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = checkpoint_activations(Stack(), Block)
    copied_model = copied(model)
    passes, others = _record_passes(copied_model), _record_passes(model)
    assert equal_trees(gradients_of(copied_model), gradients_of(Stack()))
    assert (len(passes), len(others)) == (12, 0)
    checkpoint_activations(copied_model, Block)  # changes nothing
    assert equal_trees(gradients_of(model), gradients_of(Stack()))


def test_forward_keeps_signature() -> None:
    forward = checkpoint_activations(Mixer(4), Mixer).forward
    assert list(inspect.signature(forward).parameters) == ["inputs", "debug"]


@pytest.mark.slow
def test_compiled_step_has_same_bits() -> None:
    results: list[tuple[list[Tensor], list[Tensor]]] = []
    for blocks in (None, Block):
        model = Stack() if blocks is None else checkpoint_activations(Stack(), blocks)
        options: Any = {"precision": "bf16", "compile": True, "max_norm": 1.0}
        carry = torch.zeros(4, 4), torch.zeros(4, 4)
        with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True)):
            step = make_step("adamw", model, carried_loss, carry=carry, **options)
        torch.manual_seed(2)
        losses = [step(*pair).loss for pair in zip(batches(3), batches(3, seed=1), strict=True)]
        results.append((losses, list(model.parameters())))
    assert equal_trees(*results)
