"""Wrong calls of `Checkpoints`, and states that a checkpoint can't hold."""

import math
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import Part
from support.checkpointing.wrapped_tensors import Unlisted, Wrapped
from support.errors import Row, check_error, each, each_row
from torch import Tensor, nn

from torch_bridge import Checkpoints
from torch_bridge.checkpointing.states import split_state
from torch_bridge.distributed.plain_names import load_plain_state
from torch_bridge.training.optimizer_states import load_optimizer

encode = partial(split_state, "part", copy_tensor=Tensor.clone)


class Pair(NamedTuple):
    a: int


class Point:
    """A class of the user, as an element of a set or as a key."""


def nested() -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch calls nested tensors a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def with_metadata(metadata: Any) -> Any:
    state: Any = nn.Linear(1, 1).state_dict()
    state._metadata = metadata
    return state


def buffer(name: str) -> nn.Module:
    module = nn.Module()
    module.register_buffer("values", torch.zeros(2, dtype=getattr(torch, name)))
    return module


def load_state(submodules: dict[str, nn.Module], *names: str) -> None:
    """Load a state with these names into a layer that has submodules."""
    model = nn.Linear(2, 2, bias=False)
    for name, module in submodules.items():
        model.add_module(name, module)
    load_plain_state(model, {name: torch.ones(2, 2) for name in names})


def with_module(order: int = 1) -> torch.optim.Optimizer:
    """Return an optimizer of `weight` and `module.weight`, equal without the names of wrappers."""
    model = nn.Linear(2, 2, bias=False)
    model.module = nn.Linear(2, 2, bias=False)
    return torch.optim.AdamW(list(model.named_parameters())[::order])


def on_meta() -> nn.Module:
    """Return a module without memory."""
    with torch.device("meta"):
        return nn.Linear(3, 2, bias=False)


def wrapped(kind: type[Wrapped] = Wrapped, inner: Any = None, context: Any = None) -> Wrapped:
    """Return a tensor that wraps another one."""
    if inner is None:
        inner = torch.ones(2)
    return kind({"codes": inner}, context, (2,), torch.float32)


def computed() -> Tensor:
    """Return a tensor with a history of gradients."""
    return nn.Linear(2, 1)(torch.ones(2))


class Half(np.float16):
    """A scalar class of the user."""


ARGUMENTS: list[Row] = [
    (lambda here: Checkpoints(here, keep=0), ValueError, "keep = 0"),
    (lambda here: Checkpoints(here / "file"), NotADirectoryError, "/file': ", "not a directory"),
    (lambda here: Checkpoints(here / "link" / "new"), NotADirectoryError, "/new': ",
     "a link to a missing directory"),
    (lambda checkpoints: checkpoints.save(-1, values=[1]), ValueError, "step = -1"),
    (lambda checkpoints: checkpoints.load("1", values=[1]), TypeError, "step = '1'"),
    *(
        row
        for call in (
            lambda checkpoints, value: checkpoints.save(1, odd=value),
            lambda checkpoints, value: checkpoints.load(odd=value),
        )
        for row in each(call, [(1, 2), Part], TypeError, "odd = ", "state_dict and load_state_dict")
    ),
    (lambda here: Checkpoints(here / "10"), ValueError, "/10 is itself a checkpoint", "directory of the run"),
    (lambda checkpoints: checkpoints.save(1), ValueError, "no parts"),
    (lambda checkpoints: checkpoints.save(1, **{"../up": []}), ValueError, "'../up'", "variable name"),
    (lambda checkpoints: checkpoints.save(1, __metadata__=Part(1)), ValueError, "'__metadata__'"),
    (lambda checkpoints: checkpoints.save(1, verify=Part(1)), ValueError, "'verify' must be"),
    (lambda checkpoints: checkpoints.save(1, Part(1), values=[1]), TypeError, "wait = ", "by name"),
    (lambda checkpoints: checkpoints.save(1, {"a": 1}, values=[1]), TypeError, "wait = {'a': 1}", "by name"),
    (lambda checkpoints: checkpoints.save(1, [1], values=[1]), TypeError, "wait = [1]", "by name"),
    (lambda checkpoints, one: checkpoints.load(3, one=one), ValueError, "no checkpoint 3", "[10, 20, 50]"),
    (lambda checkpoints, one: checkpoints.load(one=one, three=[]), ValueError,
     "['model', 'one', 'two', 'optimizer']", "['three']"),
    (lambda checkpoints, one: checkpoints.load(one=one, two=[]), ValueError, "two was saved as a dict",
     "a list"),
    (lambda checkpoints, one: checkpoints.load(one=one, model={}), ValueError, "model was saved as a state",
     "a dict"),
    (lambda model, empty: empty.load_model(model), ValueError, "/empty has no checkpoint to load"),
    (lambda checkpoints: checkpoints.load(10, model=on_meta()), ValueError, "model is on the meta device",
     "model.to_empty(device=...)"),
    (lambda empty: empty.load(model=on_meta()), ValueError, "model is on the meta device"),
    (lambda checkpoints: checkpoints.load(50, optimizer=torch.optim.SGD(on_meta().parameters())), ValueError,
     "optimizer has parameters on the meta device", "build the optimizer afterwards"),
]  # fmt: skip
MODELS: list[Row] = [
    (lambda model, checkpoints: checkpoints.load_model(model, part="none"), ValueError, "has the parts",
     "['none']"),
    (lambda model, checkpoints: checkpoints.load_model(model, 50, part="two"), ValueError,
     "two is neither a TrainStep nor a module"),
    (lambda model, checkpoints: checkpoints.load_model(model, 50, part="optimizer"), ValueError,
     "optimizer of checkpoint 50 was saved with a"),
    (lambda checkpoints: checkpoints.load_model(nn.Linear(3, 2, device="meta"), part="model"), ValueError,
     "model is on the meta device", "to_empty"),
    (lambda model, checkpoints: checkpoints.load_model(model, 50, part="model"), ValueError,
     "model of checkpoint 50 was saved with a", "weight: (2, 4) in the checkpoint, (2, 3) here"),
    (lambda checkpoints: checkpoints.load_model(nn.Linear(3, 2), 10, part="model"), ValueError,
     "bias: missing in the checkpoint, (2,) here"),
    (lambda: load_state({}, "weight", "module.weight"), RuntimeError, "Unexpected key", '"module.weight"'),
    (lambda: load_state({}, "weight", "more"), RuntimeError, "Unexpected key", '"more"'),
    (lambda: load_state({"module": nn.Linear(2, 2)}, "module.weight", "module.module.weight"), RuntimeError,
     "Missing key", '"weight"'),
    (lambda: load_optimizer(with_module(-1), with_module().state_dict()), ValueError,
     "parameter 0 is weight in the state and module.weight here"),
]  # fmt: skip
MERGES: list[Row] = [
    (lambda merge: merge(10, [1.0]), TypeError, "steps = 10", "sequence"),
    (lambda merge: merge([10, 20.0], [0.5, 0.5]), TypeError, "steps[1] = 20.0"),
    (lambda merge: merge([10, -1], [0.5, 0.5]), ValueError, "steps[1] = -1"),
    (lambda merge: merge([], []), ValueError, "weights add up to 0"),
    (lambda merge: merge([10, 20, 10], [0.5, 0.25, 0.25]), ValueError, "steps = [10, 20, 10]",
     "more than once"),
    (lambda merge: merge([10, 25], [0.5, 0.5]), ValueError, "no checkpoint 25", "[10, 20, 50]"),
    (lambda merge: merge([10], 0.25), TypeError, "weights = 0.25", "sequence"),
    (lambda merge: merge([10], ["a"]), TypeError, "weights[0] = 'a'"),
    (lambda merge: merge([10, 20], [1.0]), ValueError, "2 steps and 1 weights"),
    (lambda merge: merge([10, 20], [0.5, math.nan]), ValueError, "weights[1] = nan"),
    (lambda merge: merge([10, 20], [0.5, 0.50001]), ValueError, "weights add up to 1.00001"),
    (lambda merge: merge([10], [1.0], part="step"), ValueError, "10 has the parts ['model', 'int64'",
     "['step']"),
    (lambda merge: merge([10, 50], [0.5, 0.5]), ValueError, "checkpoint 50",
     "weight: (2, 4) in the checkpoint, (2, 3) here"),
    (lambda merge: merge([50, 10], [0.0, 1.0]), ValueError, "checkpoint 50", "weight: (2, 4)"),
    (lambda merge: merge([10, 20], [0.5, 0.5], into=nn.Linear(3, 3)), ValueError, "checkpoint 10",
     "different model"),
    # In checkpoint 10 the buffer has the dtype of the part's name; in checkpoint 20 it is float32.
    (lambda merge: merge([10, 20], [0.5, 0.5], into=buffer("float32"), part="int64"), ValueError,
     "values is torch.int64 in checkpoint 10, and torch.float32 in checkpoint 20"),
    (lambda merge: merge([10, 20], [0.5, 0.5], into=buffer("float32"), part="complex64"), ValueError,
     "values is torch.complex64 in checkpoint 10, and torch.float32 in checkpoint 20"),
    (lambda merge: merge([20], [1.0], into=buffer("int64"), part="int64"), ValueError,
     "values is torch.float32 in checkpoint 20, and torch.int64 here", "mean"),
    (lambda merge: merge([10], [1.0], into=buffer("float32"), part="complex64"), ValueError,
     "values is torch.complex64 in checkpoint 10, and torch.float32 here", "mean"),
    (lambda merge: merge([10, 20], [0.5, 0.5], into=buffer("float32"), part="quantized"), ValueError,
     "values is of support.checkpointing.wrapped_tensors.Wrapped in checkpoint 10", "can't be averaged"),
]  # fmt: skip
VALUES: list[Row] = [
    (lambda: encode({"a": [object()]}), TypeError, "part.a.0 is of builtins.object", "keep it in a separate",
     "torch.save"),
    (lambda: encode(Pair(1)), TypeError, "part is of ", "test_errors.Pair"),
    (lambda: encode({1: defaultdict(int)}), TypeError, "part.1 is of collections.defaultdict"),
    (lambda: encode({"a": np.array([None])}), TypeError, "part.a is a NumPy array of object"),
    (lambda: encode({"a": np.zeros(2, "i2,f4")}), TypeError, "part.a is a NumPy array of [('f0'"),
    (lambda: encode({"a": np.zeros(2, jnp.bfloat16)}), TypeError, "part.a is a NumPy array of bfloat16"),
    (lambda: encode({"a": np.void(b"ab")}), TypeError, "part.a is a NumPy scalar of |V2", "torch.save"),
    (lambda: encode({"a": np.ones(1, jnp.bfloat16)[0]}), TypeError, "part.a is a NumPy scalar of bfloat16"),
    (lambda: encode({"a": Half(1)}), TypeError, "part.a is of ", "test_errors.Half"),
    (lambda: encode({"a": wrapped(Unlisted)}), TypeError,
     "part.a is of support.checkpointing.wrapped_tensors.Unlisted", "not in torch's list of safe globals",
     "add_safe_globals([Unlisted])", "torch.save"),
    (lambda: encode({"a": wrapped(inner=wrapped(Unlisted))}), TypeError, "part.a.codes is of ", "Unlisted"),
    (lambda: encode({"a": wrapped(context=[1, Point()])}), TypeError, "the context of part.a.1.1 is of ",
     "test_errors.Point", "torch.save"),
    (lambda: encode({"a": wrapped(context=torch.ones(2))}), TypeError, "the context of part.a.1 is of torch",
     "Tensor"),
    (lambda: encode({"a": wrapped(inner=[1])}), TypeError, "part.a.codes is of builtins.list, within"),
    (lambda: encode({"a": wrapped(inner=torch.eye(2).to_sparse())}), TypeError,
     "part.a.codes is a torch.sparse_coo Tensor"),
    (lambda: encode({"a": wrapped(inner=computed())}), TypeError, "part.a.codes was computed with gradients"),
    (lambda: encode({np.float64(1): 2}), TypeError, "the key", "is of numpy.float64"),
    (lambda: encode({"a": np.ma.masked_array([1], [True])}), TypeError, "part.a is of numpy.ma",
     "MaskedArray"),
    (lambda: encode({"a": torch.eye(2).to_sparse()}), TypeError, "part.a is a torch.sparse_coo Tensor"),
    (lambda: encode({"a": torch.ones(2).to(torch.uint8).view(torch.bits8)}), TypeError, "part.a",
     "of torch.bits8"),
    (lambda: encode({"a": nested()}), TypeError, "part.a is a nested Tensor of torch.float32"),
    (lambda: encode({"a": torch.empty(2, device="meta")}), TypeError, "part.a", "torch.float32 on meta"),
    (lambda: encode({"a": {2, Point()}}), TypeError, " in part.a is of ", "test_errors.Point"),
    (lambda: encode({"a": frozenset({(Point(),)})}), TypeError, " in part.a is of ", "test_errors.Point"),
    (lambda: encode({(1, Point()): 1}), TypeError, "the key (1, ", " of part is of ", "test_errors.Point"),
    (lambda: encode({"a": 2**2032}), TypeError, "part.a is an integer of more than 2032 bits"),
    (lambda: encode({"a": computed()}), TypeError, "part.a", "gradients", "tensor.detach()"),
    (lambda: encode(with_metadata(Point())), TypeError, "part._metadata is of ", "test_errors.Point"),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 10, 20, and 50 of a different model with more parts; a file and a broken link."""
    directory = tmp_path_factory.mktemp("errors")
    (directory / "file").touch()
    (directory / "link").symlink_to(directory / "missing" / "folder")
    checkpoints, kinds = Checkpoints(directory, keep=9), ("int64", "complex64")
    for count in (10, 20):
        buffers = {kind: buffer(kind if count == 10 else "float32") for kind in kinds}
        buffers["quantized"] = buffer("float32")
        if count == 10:
            buffers["quantized"].values = wrapped()
        checkpoints.save(count, model=nn.Linear(3, 2, bias=False), **buffers)
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    checkpoints.save(50, wait=True, model=model, one=[1], two={"a": 1}, optimizer=optimizer)
    return directory


@each_row([*ARGUMENTS, *MODELS, *MERGES])
def test_wrong_calls(row: Row, here: Path) -> None:
    """No part changes, and no file is written."""
    before, checkpoints, model = sorted(here.rglob("*")), Checkpoints(here), nn.Linear(3, 2, bias=False)
    objects = {"here": here, "checkpoints": checkpoints, "empty": Checkpoints(here / "empty"), "one": [5]}
    merge = partial(checkpoints.merge, into=model, part="model")
    check_error(row, merge=merge, model=model, **objects)
    assert sorted(here.rglob("*")) == before


@each_row(VALUES)
def test_unsupported_value_is_named(row: Row) -> None:
    check_error(row)
