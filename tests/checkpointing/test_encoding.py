"""A state as JSON and tensors: it round-trips exactly, or the value that can't is named."""

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors.torch import load_file
from support.checkpointing.checkpoints import Part, same_bits
from support.examples import examples
from support.training.steps import make_step
from torch import Tensor, nn

from torch_bridge import Checkpoints
from torch_bridge.checkpointing import encoding

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


@st.composite
def _tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    tensor = values.to(draw(st.sampled_from(list(encoding.DTYPES.values()))))
    if shape and draw(st.booleans()):
        tensor = tensor.movedim(0, -1)
    if tensor.is_contiguous():
        # A contiguous tensor may have any stride along a dimension of size 1; the usual one is restored.
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    requires_grad = (tensor.is_floating_point() or tensor.is_complex()) and draw(st.booleans())
    is_parameter = draw(st.booleans())
    return nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


_texts = st.text() | st.text(st.characters(categories=["Cs", "Cc", "L"]))  # also halves of surrogate pairs
_keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts | st.binary(),
    lambda keys: st.tuples(keys, keys),
    max_leaves=3,
)
_leaves = (
    _keys
    | st.floats()
    | st.just("$")
    | st.integers(-(2**70), 2**70)
    | _tensors()
    | st.sampled_from(
        [*encoding.DTYPES.values(), torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 0])]
    )
    | st.sampled_from(["<f8", ">i2", "?", "<U3", "<M8[s]", "<c8"]).map(lambda kind: np.zeros((2, 1), kind))
    | st.sampled_from([np.float64(0.1), np.float32(math.nan), np.int8(3), np.bool_(True)])
    | st.sampled_from([np.zeros((0, 3)), np.arange(6).reshape(2, 3)[:, ::2], np.array(1.5)])
    | st.sets(st.integers() | st.text())
    | st.frozensets(st.integers())
)
_states = st.recursive(
    _leaves,
    lambda states: (
        st.lists(states)
        | st.tuples(states, states)
        | st.dictionaries(_keys | st.sampled_from(["$", "a", "a.b", "b"]), states)
        | st.dictionaries(_texts, states).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=20,
)


@examples(150)
@given(_states)
@example({"\ud800": torch.ones(2)})
@example(torch.ones(2, requires_grad=True))
@example(nn.Parameter(torch.ones(2)))
@example(nn.Sequential(nn.BatchNorm1d(2)).state_dict())  # with the versions of modules
def test_state_round_trips(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    """Torch's default device changes nothing."""
    checkpoints, part = Checkpoints(tmp_path_factory.mktemp("state")), Part()
    with torch.device("meta"):
        checkpoints.save(1, part=Part(state))
        checkpoints.load(part=part)
    assert same_bits(part.state, state)


def test_equal_paths_get_different_keys() -> None:
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, ("a", 1): torch.ones(2)}
    encoded, tensors = encoding.encode_state("part", state)
    assert list(tensors) == ["part.a.b", "part.a.b~1", "part.('a', 1)"]
    read = json.loads(encoding.to_json(encoded))
    assert same_bits(encoding.decode_state("part", read, lambda _, reference: tensors[reference.key]), state)


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_tensors_are_written_once(tmp_path: Path, is_tied: bool) -> None:
    """Both names refer to it. Tensors with equal values that are not tied are each written."""
    weight = torch.arange(1000.0)
    state = {"a": weight, "b": weight if is_tied else weight.clone(), "part of it": weight[:500]}
    square = torch.arange(9.0).view(3, 3)
    state |= {"square": square, "transposed": square.t()}  # the same memory in a different order
    checkpoints, part = Checkpoints(tmp_path), Part()
    checkpoints.save(1, part=Part(state), wait=True)
    size = (tmp_path / "1" / "rank-0.safetensors").stat().st_size
    assert (size < 7000) == is_tied
    assert checkpoints.load(part=part) == 1
    assert same_bits(part.state, state)


def test_tied_weights_of_step_are_written_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    step, untrained = make_step(model=model), make_step(model=nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, step=step, wait=True)
    tensors = load_file(tmp_path / "1" / "rank-0.safetensors")
    names = sorted(key for key in tensors if key.startswith("step.model."))
    assert names == ["step.model.0.bias", "step.model.0.weight", "step.model.1.bias"]
    checkpoints.load_model(untrained.model)
    assert torch.equal(untrained.model[1].weight, model[0].weight)


_IN_SETS: list[Callable[[Any], Any]] = [lambda value: (value,), lambda value: frozenset([value])]
_CONTAINERS: list[Callable[[Any], Any]] = [
    lambda value: [value],
    lambda value: (value,),
    lambda value: {"a": value},
    lambda value: {1: value},
    lambda value: OrderedDict(a=value),
    lambda value: {"$": value},
]


@examples(30)
@given(st.lists(st.sampled_from(_CONTAINERS), min_size=1) | st.just(_IN_SETS), st.integers(98, 102))
def test_saved_depth_can_be_loaded(
    tmp_path_factory: pytest.TempPathFactory, containers: list[Callable[[Any], Any]], depth: int
) -> None:
    """Python's stack would end a load of nested tuples earlier than their save."""
    state: Any = 0
    for wrap in islice(cycle(containers), depth):
        state = wrap(state)
    checkpoints, part = Checkpoints(tmp_path_factory.mktemp("state")), Part()
    if depth > 100:
        with pytest.raises(TypeError, match="part is nested more than 100 levels deep"):
            checkpoints.save(1, part=Part(state))
    else:
        checkpoints.save(1, part=Part(state))
        checkpoints.load(part=part)
        assert same_bits(part.state, state)
