"""Parts of checkpoints, their states, and the comparison of states."""

import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from support.checkpointing.wrapped_tensors import Wrapped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints
from torch_bridge.training.checkpointing import saving


class Part:
    """A part that is its state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


class Rejecting(Part):
    """A part that takes a state first, and then rejects it unless it is the former one."""

    def load_state_dict(self, state_dict: Any) -> None:
        before = self.state
        self.state = state_dict
        if state_dict != before:
            raise KeyError("a different one")


# A run whose parts can be checked.


def state_of(number: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(number)), "number": number, "none": {}}


def constant_model(value: float) -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def save_steps(directory: Path, steps: Sequence[int], keep: int = 2, **more_parts: Any) -> None:
    """Save these checkpoints one after the other. The number of a part's state is the step."""
    checkpoints = Checkpoints(directory, keep=keep)
    for step in steps:
        checkpoints.save(step, part=Part(state_of(step)), wait=True, **more_parts)


def check_no_leftovers(directory: Path, steps: Sequence[int]) -> None:
    """Check that a directory has one checkpoint of each step, and nothing else."""
    names = [path.name for path in directory.iterdir()]
    # A checkpoint that was saved again may be 2.1 instead of 2.
    steps_in_names = sorted(name.partition(".")[0] for name in names)
    assert steps_in_names == sorted(str(step) for step in steps), names


def wait_for_saves() -> None:
    """Wait for all saves of this process, and leave their errors to the next calls."""
    for thread in threading.enumerate():
        if isinstance(thread, saving.BackgroundSave):
            thread.join()


@contextmanager
def saving_is_busy() -> Generator[None]:
    """Keep every save of this process from beginning to write."""
    may_start = Event()
    write, process = saving._write, os.getpid()

    def late(*arguments: Any) -> None:
        if os.getpid() == process:
            may_start.wait()
        write(*arguments)

    with patch.object(saving, "_write", late):
        try:
            yield
        finally:
            may_start.set()


# Comparisons.


def gathered(state: Any) -> Any:
    """Return a copy of a state in which every DTensor is a plain tensor."""

    def copied(tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            tensor = cast("Any", tensor).full_tensor()
        return tensor.detach().clone()

    return cast("Any", pytree).tree_map_only(Tensor, copied, state)


def assert_same_bits(actual: Any, expected: Any, path: str = "tree") -> None:
    """Check that types, bits, the order of keys, shapes and memory layouts are equal."""
    assert type(actual) is type(expected), f"{path}: {actual!r}, not {expected!r}"
    if isinstance(expected, Tensor):
        _assert_same_tensors(actual, expected, path)
    elif isinstance(expected, np.ndarray | np.generic):
        _assert_same_arrays(actual, expected, path)
    elif isinstance(expected, Mapping):
        _assert_same_mappings(actual, cast("Mapping[Any, Any]", expected), path)
    elif isinstance(expected, list | tuple):
        items = cast("Sequence[Any]", expected)
        assert len(actual) == len(items), f"{path}: {actual!r}, not {items!r}"
        for index, (item, expected_item) in enumerate(zip(actual, items, strict=True)):
            assert_same_bits(item, expected_item, f"{path}[{index}]")
    elif isinstance(expected, float | complex):
        _assert_same_arrays(np.complex128(actual), np.complex128(expected), path)
    else:
        assert actual == expected, f"{path}: {actual!r}, not {expected!r}"


def _assert_same_tensors(actual: Any, expected: Any, path: str) -> None:
    for name in ("dtype", "shape", "requires_grad"):
        assert getattr(actual, name) == getattr(expected, name), f"{path}, {name}"
    if isinstance(expected, Wrapped):
        assert_same_bits(actual.context, expected.context, f"{path}.context")
        assert_same_bits(actual.tensors, expected.tensors, f"{path}.tensors")
        return
    assert actual.stride() == expected.stride(), path
    assert actual.is_leaf == expected.is_leaf, path
    assert _bits(actual) == _bits(expected), f"{path}: {actual!r}, not {expected!r}"


def _assert_same_arrays(actual: Any, expected: Any, path: str) -> None:
    for name in ("dtype", "shape"):
        assert getattr(actual, name) == getattr(expected, name), f"{path}, {name}"
    assert actual.tobytes() == expected.tobytes(), f"{path}: {actual!r}, not {expected!r}"


def _assert_same_mappings(actual: Any, expected: Mapping[Any, Any], path: str) -> None:
    versions = getattr(expected, "_metadata", None)  # of modules
    assert_same_bits(getattr(actual, "_metadata", None), versions, f"{path}._metadata")
    assert_same_bits(list(actual), list(expected), f"keys of {path}")
    for key, value in expected.items():
        assert_same_bits(actual[key], value, f"{path}[{key!r}]")


def _bits(tensor: Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()
