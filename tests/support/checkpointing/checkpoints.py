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


def model_of_buffer(values: Tensor) -> nn.Module:
    model = nn.Module()
    model.register_buffer("values", values)
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


def same_bits(actual: Any, expected: Any) -> bool:
    """Return True if types, bits, the order of keys, shapes and memory layouts are equal."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        return _same_tensors(actual, expected)
    if isinstance(expected, np.ndarray | np.generic):
        return _same_arrays(actual, cast("Any", expected))
    if isinstance(expected, Mapping):
        return _same_mappings(actual, cast("Mapping[Any, Any]", expected))
    if isinstance(expected, list | tuple):
        items = cast("Sequence[Any]", expected)
        return len(actual) == len(items) and all(map(same_bits, actual, items))
    if isinstance(expected, float | complex):
        return np.complex128(actual).tobytes() == np.complex128(expected).tobytes()
    return actual == expected


def _same_tensors(actual: Any, expected: Any) -> bool:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if actual.requires_grad != expected.requires_grad:
        return False
    if isinstance(expected, Wrapped):
        has_same_context = same_bits(actual.context, expected.context)
        return has_same_context and same_bits(actual.tensors, expected.tensors)
    has_same_layout = actual.stride() == expected.stride()
    has_same_history = actual.is_leaf == expected.is_leaf
    return has_same_layout and has_same_history and _bits(actual) == _bits(expected)


def _same_arrays(actual: Any, expected: Any) -> bool:
    has_same_form = actual.dtype == expected.dtype and actual.shape == expected.shape
    return has_same_form and actual.tobytes() == expected.tobytes()


def _same_mappings(actual: Any, expected: Mapping[Any, Any]) -> bool:
    versions = getattr(expected, "_metadata", None)  # of modules
    if not same_bits(getattr(actual, "_metadata", None), versions):
        return False
    return same_bits(list(actual.items()), list(expected.items()))


def _bits(tensor: Tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes()
