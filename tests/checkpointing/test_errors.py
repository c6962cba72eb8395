"""Wrong calls of `Checkpoints`, and states that a checkpoint can't hold."""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.checkpointing.checkpoints import Part
from support.checkpointing.wrapped_tensors import Unlisted, Wrapped
from support.wrong import wrong
from torch import Tensor
from torch.nn import Linear, Module
from torch.optim import SGD, AdamW

from torch_bridge import Checkpoints
from torch_bridge.checkpointing.states import split_state
from torch_bridge.distributed.plain_names import load_plain_state
from torch_bridge.training.optimizer_states import load_optimizer


def meta_model() -> Module:
    """Return a model without memory."""
    return Linear(3, 2, bias=False, device="meta")


def bare_linear() -> Module:
    return Linear(3, 2, bias=False)


def model_of_buffer(values: Tensor) -> Module:
    module = Module()
    module.register_buffer("values", values)
    return module


def wrapped(inner: Any = None, context: Any = None, kind: type[Wrapped] = Wrapped) -> Wrapped:
    """Return a tensor that wraps another one."""
    if inner is None:
        inner = torch.ones(2)
    return kind({"codes": inner}, context, (2,), torch.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints 10 and 20, and 50 of a different model with more parts."""
    directory = tmp_path_factory.mktemp("errors")
    checkpoints = Checkpoints(directory, keep=9)
    checkpoints.save(
        10,
        model=bare_linear(),
        int64=model_of_buffer(torch.zeros(2, dtype=torch.int64)),
        complex64=model_of_buffer(torch.zeros(2, dtype=torch.complex64)),
        quantized=model_of_buffer(wrapped()),
    )
    checkpoints.save(
        20,
        model=bare_linear(),
        int64=model_of_buffer(torch.zeros(2)),
        complex64=model_of_buffer(torch.zeros(2)),
        quantized=model_of_buffer(torch.zeros(2)),
    )
    model = Linear(4, 2, bias=False)
    optimizer = SGD(model.parameters())
    checkpoints.save(50, model=model, numbers=[1], options={"a": 1}, optimizer=optimizer, wait=True)
    return directory


@pytest.fixture
def directory(saved: Path) -> Iterator[Path]:
    """The directory of the run, in which no file may appear or go."""
    before = sorted(saved.rglob("*"))
    yield saved
    assert sorted(saved.rglob("*")) == before


@pytest.fixture
def checkpoints(directory: Path) -> Checkpoints:
    return Checkpoints(directory)


@pytest.fixture
def no_checkpoints(directory: Path) -> Checkpoints:
    return Checkpoints(directory / "empty")


@pytest.fixture
def model() -> Module:
    return bare_linear()


@pytest.fixture
def numbers() -> list[int]:
    """A part that is saved in checkpoint 50 with another number."""
    return [5]


# Building.


@wrong(ValueError, "keep = 0")
def test_keep_no_checkpoint(directory: Path) -> None:
    Checkpoints(directory, keep=0)


@wrong(NotADirectoryError, "/file': ", "not a directory")
def test_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Checkpoints(tmp_path / "file")


@wrong(NotADirectoryError, "/new': ", "a link to a missing directory")
def test_directory_under_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "folder")
    Checkpoints(tmp_path / "link" / "new")


@wrong(ValueError, "/10 is itself a checkpoint", "directory of the run")
def test_directory_of_a_single_checkpoint(directory: Path) -> None:
    Checkpoints(directory / "10")


# Saving.


@wrong(ValueError, "step = -1")
def test_save_before_the_first_step(checkpoints: Checkpoints) -> None:
    checkpoints.save(-1, values=[1])


@wrong(ValueError, "no parts")
def test_save_nothing(checkpoints: Checkpoints) -> None:
    checkpoints.save(1)


@wrong(TypeError, "part = (1, 2)", "state_dict and load_state_dict")
def test_save_tuple(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, part=(1, 2))


@wrong(TypeError, f"part = {Part}", "state_dict and load_state_dict")
def test_save_class_of_a_part(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, part=Part)


@wrong(ValueError, "'../up'", "variable name")
def test_save_part_with_the_name_of_a_path(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, **{"../up": []})


@wrong(ValueError, "'__metadata__'")
def test_save_part_with_a_reserved_name(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, __metadata__=Part(1))


@wrong(ValueError, "'verify' must be")
def test_save_part_with_the_name_of_an_argument(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, verify=Part(1))


@wrong(TypeError, "wait = ", "by name")
def test_save_part_without_its_name(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, Part(1), values=[1])


@pytest.mark.parametrize("part", [{"a": 1}, [1]])
@wrong(TypeError, "wait = {part}", "by name")
def test_save_value_without_its_name(checkpoints: Checkpoints, part: Any) -> None:
    checkpoints.save(1, part, values=[1])


# Loading.


@wrong(TypeError, "step = '1'")
def test_load_step_in_quotes(checkpoints: Checkpoints, numbers: list[int]) -> None:
    checkpoints.load("1", numbers=numbers)


@wrong(ValueError, "no checkpoint 3", "[10, 20, 50]")
def test_load_missing_checkpoint(checkpoints: Checkpoints, numbers: list[int]) -> None:
    checkpoints.load(3, numbers=numbers)


@wrong(TypeError, "part = (1, 2)", "state_dict and load_state_dict")
def test_load_tuple(checkpoints: Checkpoints) -> None:
    checkpoints.load(part=(1, 2))


@wrong(TypeError, f"part = {Part}", "state_dict and load_state_dict")
def test_load_class_of_a_part(checkpoints: Checkpoints) -> None:
    checkpoints.load(part=Part)


@wrong(ValueError, "['model', 'numbers', 'options', 'optimizer']", "['more']")
def test_load_missing_part(checkpoints: Checkpoints, numbers: list[int]) -> None:
    checkpoints.load(numbers=numbers, more=[])


@wrong(ValueError, "options was saved as a dict", "a list")
def test_load_dict_as_a_list(checkpoints: Checkpoints, numbers: list[int]) -> None:
    checkpoints.load(numbers=numbers, options=[])


@wrong(ValueError, "model was saved as a state", "a dict")
def test_load_model_as_a_dict(checkpoints: Checkpoints, numbers: list[int]) -> None:
    checkpoints.load(numbers=numbers, model={})


@wrong(ValueError, "model is on the meta device", "model.to_empty(device=...)")
def test_load_into_a_model_without_memory(checkpoints: Checkpoints) -> None:
    model = meta_model()
    checkpoints.load(10, model=model)


@wrong(ValueError, "model is on the meta device")
def test_load_nothing_into_a_model_without_memory(no_checkpoints: Checkpoints) -> None:
    """The first start of a run reveals the mistake too."""
    model = meta_model()
    no_checkpoints.load(model=model)


@wrong(ValueError, "optimizer has parameters on the meta device", "build the optimizer afterwards")
def test_load_optimizer_of_a_model_without_memory(checkpoints: Checkpoints) -> None:
    model = meta_model()
    optimizer = SGD(model.parameters())
    checkpoints.load(50, optimizer=optimizer)


# `load_model`.


@wrong(ValueError, "/empty has no checkpoint to load")
def test_load_model_from_an_empty_directory(no_checkpoints: Checkpoints, model: Module) -> None:
    no_checkpoints.load_model(model)


@wrong(ValueError, "has the parts", "['none']")
def test_load_model_from_a_missing_part(checkpoints: Checkpoints, model: Module) -> None:
    checkpoints.load_model(model, part="none")


@wrong(ValueError, "options is neither a TrainStep nor a module")
def test_load_model_from_a_dict(checkpoints: Checkpoints, model: Module) -> None:
    checkpoints.load_model(model, 50, part="options")


@wrong(ValueError, "optimizer of checkpoint 50 was saved with a")
def test_load_model_from_an_optimizer(checkpoints: Checkpoints, model: Module) -> None:
    checkpoints.load_model(model, 50, part="optimizer")


@wrong(ValueError, "model is on the meta device", "to_empty")
def test_load_model_without_memory(checkpoints: Checkpoints) -> None:
    model = meta_model()
    checkpoints.load_model(model, part="model")


@wrong(
    ValueError,
    "model of checkpoint 50 was saved with a",
    "weight: (2, 4) in the checkpoint, (2, 3) here",
)
def test_load_model_of_a_different_shape(checkpoints: Checkpoints, model: Module) -> None:
    checkpoints.load_model(model, 50, part="model")


@wrong(ValueError, "bias: missing in the checkpoint, (2,) here")
def test_load_model_with_more_parameters(checkpoints: Checkpoints) -> None:
    with_bias = Linear(3, 2)
    checkpoints.load_model(with_bias, 10, part="model")


# States in which a submodule is named `module`, as wrappers name the model.


@pytest.mark.parametrize("key", ["module.weight", "more"])
def test_state_with_an_unexpected_key(key: str) -> None:
    layer = Linear(2, 2, bias=False)
    ones = torch.ones(2, 2)
    state = {"weight": ones, key: ones}
    with pytest.raises(RuntimeError, match=rf'Unexpected key.*"{key}"'):
        load_plain_state(layer, state)


@wrong(RuntimeError, "Missing key", '"weight"')
def test_state_without_a_weight_next_to_a_module() -> None:
    layer = Linear(2, 2, bias=False)
    layer.module = Linear(2, 2)
    ones = torch.ones(2, 2)
    state = {"module.weight": ones, "module.module.weight": ones}
    load_plain_state(layer, state)


@wrong(ValueError, "parameter 0 is weight in the state and module.weight here")
def test_optimizer_state_in_a_different_order() -> None:
    """The two names are equal without the names of wrappers."""
    layer = Linear(2, 2, bias=False)
    layer.module = Linear(2, 2, bias=False)
    parameters = list(layer.named_parameters())
    saved = AdamW(parameters)
    optimizer = AdamW(parameters[::-1])
    load_optimizer(optimizer, saved.state_dict())


# Merging.


@pytest.mark.parametrize(
    ("error", "steps", "weights", "message"),
    [
        (TypeError, 10, [1.0], r"steps = 10 .*sequence"),
        (TypeError, [10, 20.0], [0.5, 0.5], r"steps\[1\] = 20\.0"),
        (ValueError, [10, -1], [0.5, 0.5], r"steps\[1\] = -1"),
        (ValueError, [], [], r"weights add up to 0"),
        (ValueError, [10, 20, 10], [0.5, 0.25, 0.25], r"steps = \[10, 20, 10\] .*more than once"),
        (ValueError, [10, 25], [0.5, 0.5], r"no checkpoint 25.*\[10, 20, 50\]"),
        (TypeError, [10], 0.25, r"weights = 0\.25 .*sequence"),
        (TypeError, [10], ["a"], r"weights\[0\] = 'a'"),
        (ValueError, [10, 20], [1.0], r"2 steps and 1 weights"),
        (ValueError, [10, 20], [0.5, math.nan], r"weights\[1\] = nan"),
        (ValueError, [10, 20], [0.5, 0.50001], r"weights add up to 1\.00001"),
        (
            ValueError,
            [10, 50],
            [0.5, 0.5],
            r"checkpoint 50 .*weight: \(2, 4\) in the checkpoint, \(2, 3\) here",
        ),
        (ValueError, [50, 10], [0.0, 1.0], r"checkpoint 50 .*weight: \(2, 4\)"),
    ],
)
def test_wrong_steps_or_weights(
    checkpoints: Checkpoints,
    model: Module,
    error: type[Exception],
    steps: Any,
    weights: Any,
    message: str,
) -> None:
    before = model.weight.clone()
    with pytest.raises(error, match=f"(?s){message}") as caught:
        checkpoints.merge(steps, weights, into=model, part="model")
    assert type(caught.value) is error
    assert torch.equal(model.weight, before)


@wrong(ValueError, "10 has the parts ['model', 'int64'", "['step']")
def test_merge_missing_part(checkpoints: Checkpoints, model: Module) -> None:
    checkpoints.merge([10], [1.0], into=model, part="step")


@wrong(ValueError, "checkpoint 10", "different model")
def test_merge_into_a_different_model(checkpoints: Checkpoints) -> None:
    different = Linear(3, 3)
    checkpoints.merge([10, 20], [0.5, 0.5], into=different, part="model")


@pytest.mark.parametrize("dtype", ["int64", "complex64"])
def test_merge_different_dtypes(checkpoints: Checkpoints, dtype: str) -> None:
    model = model_of_buffer(torch.zeros(2))
    message = f"values is torch.{dtype} in checkpoint 10, and torch.float32 in checkpoint 20"
    with pytest.raises(ValueError, match=message):
        checkpoints.merge([10, 20], [0.5, 0.5], into=model, part=dtype)


@wrong(ValueError, "values is torch.float32 in checkpoint 20, and torch.int64 here", "mean")
def test_merge_floats_into_integers(checkpoints: Checkpoints) -> None:
    model = model_of_buffer(torch.zeros(2, dtype=torch.int64))
    checkpoints.merge([20], [1.0], into=model, part="int64")


@wrong(ValueError, "values is torch.complex64 in checkpoint 10, and torch.float32 here", "mean")
def test_merge_complex_numbers_into_floats(checkpoints: Checkpoints) -> None:
    model = model_of_buffer(torch.zeros(2))
    checkpoints.merge([10], [1.0], into=model, part="complex64")


@wrong(
    ValueError,
    "values is of support.checkpointing.wrapped_tensors.Wrapped in checkpoint 10",
    "can't be averaged",
)
def test_merge_quantized_tensors(checkpoints: Checkpoints) -> None:
    model = model_of_buffer(torch.zeros(2))
    checkpoints.merge([10, 20], [0.5, 0.5], into=model, part="quantized")


# States that a checkpoint can't hold.


class Pair(NamedTuple):
    a: int


class Point:
    """A class of the user."""


class Half(np.float16):
    """A scalar class of the user."""


def save_state(state: Any) -> None:
    split_state("part", state, copy_tensor=Tensor.clone)


def save_entry(value: Any) -> None:
    """Save a state whose entry `a` is this value."""
    save_state({"a": value})


@wrong(TypeError, "part.a.0 is of builtins.object", "keep it in a separate", "torch.save")
def test_object() -> None:
    save_entry([object()])


@wrong(TypeError, "part is of ", "test_errors.Pair")
def test_named_tuple() -> None:
    save_state(Pair(1))


@wrong(TypeError, "part.1 is of collections.defaultdict")
def test_defaultdict() -> None:
    save_state({1: defaultdict(int)})


@wrong(TypeError, " in part.a is of ", "test_errors.Point")
def test_object_in_a_set() -> None:
    save_entry({2, Point()})


@wrong(TypeError, " in part.a is of ", "test_errors.Point")
def test_object_in_a_tuple_in_a_frozenset() -> None:
    save_entry(frozenset({(Point(),)}))


@wrong(TypeError, "the key (1, ", " of part is of ", "test_errors.Point")
def test_object_in_a_key() -> None:
    save_state({(1, Point()): 1})


@wrong(TypeError, "part._metadata is of ", "test_errors.Point")
def test_object_in_the_versions_of_modules() -> None:
    state: Any = Linear(1, 1).state_dict()
    state._metadata = Point()
    save_state(state)


@wrong(TypeError, "part.a is an integer of more than 2032 bits")
def test_very_large_integer() -> None:
    save_entry(2**2032)


# NumPy.


@wrong(TypeError, "part.a is a NumPy array of object")
def test_array_of_objects() -> None:
    save_entry(np.array([None]))


@wrong(TypeError, "part.a is a NumPy array of [('f0'")
def test_array_of_records() -> None:
    save_entry(np.zeros(2, "i2,f4"))


@wrong(TypeError, "part.a is a NumPy array of bfloat16")
def test_array_of_bfloat16() -> None:
    save_entry(np.zeros(2, jnp.bfloat16))


@wrong(TypeError, "part.a is a NumPy scalar of |V2", "torch.save")
def test_scalar_of_raw_bytes() -> None:
    save_entry(np.void(b"ab"))


@wrong(TypeError, "part.a is a NumPy scalar of bfloat16")
def test_scalar_of_bfloat16() -> None:
    (scalar,) = np.ones(1, jnp.bfloat16)
    save_entry(scalar)


@wrong(TypeError, "part.a is of ", "test_errors.Half")
def test_subclass_of_a_scalar() -> None:
    save_entry(Half(1))


@wrong(TypeError, "the key", "is of numpy.float64")
def test_scalar_as_a_key() -> None:
    save_state({np.float64(1): 2})


@wrong(TypeError, "part.a is of numpy.ma", "MaskedArray")
def test_masked_array() -> None:
    save_entry(np.ma.masked_array([1], [True]))


# Tensors.


@wrong(TypeError, "part.a is a torch.sparse_coo Tensor")
def test_sparse_tensor() -> None:
    sparse = torch.eye(2).to_sparse()
    save_entry(sparse)


@wrong(TypeError, "part.a", "of torch.bits8")
def test_tensor_of_bits() -> None:
    integers = torch.ones(2, dtype=torch.uint8)
    save_entry(integers.view(torch.bits8))


@wrong(TypeError, "part.a is a nested Tensor of torch.float32")
def test_nested_tensor() -> None:
    with warnings.catch_warnings(action="ignore"):  # torch calls nested tensors a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    save_entry(nested)


@wrong(TypeError, "part.a", "torch.float32 on meta")
def test_tensor_without_memory() -> None:
    save_entry(torch.empty(2, device="meta"))


@wrong(TypeError, "part.a", "gradients", "tensor.detach()")
def test_tensor_with_a_history() -> None:
    layer = Linear(2, 1)
    outputs = layer(torch.ones(2))
    save_entry(outputs)


# Tensors that wrap others.


@wrong(
    TypeError,
    "part.a is of support.checkpointing.wrapped_tensors.Unlisted",
    "not in torch's list of safe globals",
    "add_safe_globals([Unlisted])",
    "torch.save",
)
def test_tensor_of_an_unlisted_class() -> None:
    save_entry(wrapped(kind=Unlisted))


@wrong(TypeError, "part.a.codes is of ", "Unlisted")
def test_tensor_that_wraps_one_of_an_unlisted_class() -> None:
    inner = wrapped(kind=Unlisted)
    save_entry(wrapped(inner))


@wrong(TypeError, "the context of part.a.1.1 is of ", "test_errors.Point", "torch.save")
def test_object_in_the_context_of_a_tensor() -> None:
    save_entry(wrapped(context=[1, Point()]))


@wrong(TypeError, "the context of part.a.1 is of torch", "Tensor")
def test_tensor_as_the_context_of_a_tensor() -> None:
    save_entry(wrapped(context=torch.ones(2)))


@wrong(TypeError, "part.a.codes is of builtins.list, within")
def test_tensor_that_wraps_a_list() -> None:
    save_entry(wrapped([1]))


@wrong(TypeError, "part.a.codes is a torch.sparse_coo Tensor")
def test_tensor_that_wraps_a_sparse_one() -> None:
    sparse = torch.eye(2).to_sparse()
    save_entry(wrapped(sparse))


@wrong(TypeError, "part.a.codes was computed with gradients")
def test_tensor_that_wraps_one_with_a_history() -> None:
    layer = Linear(2, 1)
    outputs = layer(torch.ones(2))
    save_entry(wrapped(outputs))
