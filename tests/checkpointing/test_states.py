"""A state as tensors and a structure round-trips exactly."""

import math
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from safetensors.torch import load_file
from support.checkpointing.checkpoints import Part, assert_same_bits
from support.checkpointing.wrapped_tensors import Quantizing, Wrapped
from support.examples import examples
from support.training.models import Net, batches
from support.training.steps import make_step
from torch import nn

from torch_bridge import Checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    dtype = draw(st.sampled_from(DTYPES))
    tensor = values.to(dtype)
    if shape and draw(st.booleans()):
        tensor = tensor.movedim(0, -1)
    if tensor.is_contiguous():
        # A contiguous tensor may have any stride along a dimension of size 1; a load restores the
        # usual one.
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return tensor


# Also halves of surrogate pairs.
texts = st.text() | st.text(st.characters(categories=["Cs", "Cc", "L"]))
numbers = st.integers() | st.floats(allow_nan=False)
keys = st.none() | st.booleans() | numbers | texts | st.binary()


# Tensors that wrap others.

contexts = st.lists(keys | st.sampled_from([torch.bfloat16, torch.Size([2, 3])]))


@st.composite
def wrapped(draw, inner):
    """A tensor of a class of which torch knows only how to take it apart and to rebuild it."""
    names = st.sampled_from(["codes", "scale", "qmap"])
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    shape = draw(st.sampled_from([(), (2,), (3, 0), (4, 2)]))
    by_name = draw(st.dictionaries(names, inner, max_size=3))
    return Wrapped(by_name, draw(contexts), shape, dtype)


wrapped_once = wrapped(tensors())
wrapped_twice = wrapped(tensors() | wrapped_once)
wrapped_tensors = wrapped(tensors() | wrapped_twice)


# NumPy.


@st.composite
def numpy_numbers(draw):
    code = draw(st.sampled_from("?bhilBHILefdF"))
    return np.dtype(code).type(draw(st.integers(0, 99)))


numpy_values = st.sampled_from(
    [
        np.float64(0.1),
        np.float32(math.nan),
        np.bool_(True),
        np.zeros((0, 3)),
        np.zeros((2, 1), np.int16),
        np.arange(6).reshape(2, 3)[:, ::2],
        np.array(1.5),
    ]
)


# States.

leaves = (
    keys
    | st.floats()
    | st.just("$")
    | st.integers(-(2**70), 2**70)
    | tensors()
    | st.sampled_from([*DTYPES, torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 0])])
    | wrapped_tensors
    | numpy_numbers()
    | numpy_values
)
states = st.recursive(
    leaves,
    lambda states: (
        st.lists(states)
        | st.tuples(states, states)
        | st.dictionaries(keys | st.sampled_from(["$", "a", "a.b", "b"]), states)
        | st.dictionaries(texts, states).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=20,
)


@examples(60)
@given(states)
@example({"\ud800": torch.ones(2)})
@example({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}})  # equal paths
@example(nn.Sequential(nn.BatchNorm1d(2)).state_dict())  # with the versions of modules
def test_state_round_trips(tmp_path_factory, state):
    """Torch's default device changes nothing."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("state"))
    part = Part()
    with torch.device("meta"):
        checkpoints.save(1, part=Part(state))
        checkpoints.load(part=part)
    assert_same_bits(part.state, state)


@pytest.mark.parametrize("leaf", [torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))])
def test_leaf_in_a_dictionary_becomes_a_plain_tensor(tmp_path, leaf):
    """So a program that trains it further gets an error: no optimizer knows the new tensor."""
    checkpoints = Checkpoints(tmp_path)
    state = {"leaf": leaf}
    checkpoints.save(1, state=state)
    checkpoints.load(state=state)
    assert_same_bits(state, {"leaf": torch.ones(2)})


def quantizing_step():
    model = Net()
    optimizer = Quantizing(model.parameters())
    return make_step(model=model, optimizer=optimizer)


def test_step_with_wrapped_moments_resumes(tmp_path):
    """From a checkpoint, and from a state, which an update does not change."""
    step = quantizing_step()
    for batch in batches(3):
        step(batch)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, step=step)
    state = step.state_dict()
    (next_batch,) = batches(1, seed=9)
    step(next_batch)

    from_checkpoint = quantizing_step()
    checkpoints.load(step=from_checkpoint)
    from_state = quantizing_step()
    from_state.load_state_dict(state)
    loaded = from_checkpoint.state_dict()
    assert_same_bits(from_state.state_dict()["optimizer"], loaded["optimizer"])
    for resumed in (from_checkpoint, from_state):
        resumed(next_batch)
        assert_same_bits(resumed.state_dict(), step.state_dict())


# Tied tensors.


WEIGHT = torch.arange(1000.0)
SQUARE = torch.arange(9.0).view(3, 3)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param({"a": WEIGHT, "b": WEIGHT.detach()}, 4000, id="tied"),
        pytest.param({"a": WEIGHT, "b": WEIGHT.clone()}, 2 * 4000, id="equal"),
        pytest.param({"a": WEIGHT, "part of it": WEIGHT[:500]}, 4000 + 2000, id="part"),
        pytest.param({"a": SQUARE, "transposed": SQUARE.t()}, 36 + 36, id="same memory"),
    ],
)
def test_only_tied_tensors_are_written_once(tmp_path, state, expected):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, part=Part(state), wait=True)
    tensors = load_file(tmp_path / "1" / "rank-0.safetensors")
    names = [name for name in tensors if name.startswith("part.")]
    assert sum(tensors[name].nbytes for name in names) == expected
    part = Part()
    assert checkpoints.load(part=part) == 1
    assert_same_bits(part.state, state)
