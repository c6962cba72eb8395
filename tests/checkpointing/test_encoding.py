"""A state as JSON and tensors: it comes back as it was, or is refused with the name of the value."""

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import same
from support.examples import examples
from torch import Tensor, nn

from torch_bridge.checkpointing import encoding

_DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
_DTYPES += [torch.complex64, torch.uint16, torch.float8_e4m3fn]


@st.composite
def _tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    tensor = (
        torch.arange(math.prod(shape), dtype=torch.float32).view(shape).to(draw(st.sampled_from(_DTYPES)))
    )
    return tensor.movedim(0, -1) if shape and draw(st.booleans()) else tensor


_keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda keys: st.tuples(keys, keys),
    max_leaves=3,
)
_leaves = (
    _keys
    | st.floats()
    | st.complex_numbers()
    | st.just("$")
    | st.integers(-(2**70), 2**70)
    | _tensors()
    | st.sampled_from([*_DTYPES, torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 0])])
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
        | st.dictionaries(_keys | st.just("$"), states)
        | st.dictionaries(st.text(), states).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=20,
)


@examples(60)
@given(_states)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    encoded, tensors = encoding.encode("part", state)
    read = json.loads(encoding.dumps(encoded))

    def make(
        key: str, dtype: torch.dtype, shape: list[int], stride: list[int] | None, placements: Any
    ) -> Tensor:
        saved = tensors[key]
        assert placements is None
        assert (saved.dtype, list(saved.shape)) == (dtype, shape)
        assert list(saved.stride()) == stride or (saved.is_contiguous() and stride is None)
        return saved

    assert same(encoding.decode(read, make), state)


def test_a_module_keeps_the_versions_of_its_parts() -> None:
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    encoded, tensors = encoding.encode("part", state)
    decoded = encoding.decode(encoded, lambda key, *_: tensors[key])
    assert decoded._metadata == {"": {"version": 1}, "0": {"version": 2}}
    assert same(decoded, state)


class _Pair(NamedTuple):
    a: int


_nested: list[Any] = []
_nested.append(_nested)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [object()]}, r"part\['a'\]\[0\] is of builtins.object,"),
        (_Pair(1), r"part is of .*test_encoding._Pair,"),
        ({1: defaultdict(int)}, r"part\[1\] is of collections.defaultdict,"),
        ({"a": np.array([None])}, r"part\['a'\] is a NumPy array of object,"),
        ({"a": np.ma.masked_array([1], [True])}, r"part\['a'\] is of numpy.ma.*MaskedArray,"),
        ({math.nan: torch.ones(1), -math.nan: torch.ones(1)}, r"part\[nan\] is there twice,"),
        ({"a": torch.eye(2).to_sparse()}, r"part\['a'\] is a torch.sparse_coo Tensor,"),
        ({"a": torch.empty(2, device="meta")}, r"part\['a'\] is a tensor without memory,"),
        ({torch.ones(1): 1}, r"the key tensor\(\[1.\]\) of part is a tensor,"),
        ({"a": print}, r"part\['a'\] is of builtins.builtin_function_or_method,"),
        (_nested, "part is nested too deep to be saved"),
    ],
)
def test_what_a_checkpoint_does_not_hold_is_named(state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoding.encode("part", state)


@pytest.mark.parametrize(
    "damaged",
    [
        {"$": "code"},
        {"$": ["tuple"]},
        {"$": "tuple"},
        {"$": "dtype", "name": "nn"},
        {"$": "tensor", "key": "k"},
        {"$": "device", "name": "?"},
    ],
)
def test_what_is_no_structure_is_refused(damaged: Any) -> None:
    with pytest.raises(ValueError, match=r"can't be read|no kind of value|no dtype"):
        encoding.decode([damaged], lambda *_: torch.empty(0))
