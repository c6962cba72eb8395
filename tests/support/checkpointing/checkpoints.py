"""Parts of checkpoints, their states, the comparison of states, and the memory of a merge."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from support.checkpointing.wrapped_tensors import Wrapped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from torch_bridge import Checkpoints


class Part:
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


class Rejecting(Part):
    """A part that takes a state first, and then rejects it unless it is the former one."""

    def load_state_dict(self, state_dict: Any) -> None:
        before, self.state = self.state, state_dict
        if state_dict != before:
            raise KeyError("another one")


def same_bits(actual: Any, expected: Any) -> bool:
    """Return True if types, bits, the order of keys, shapes and memory layouts are equal."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, Wrapped):
        sizes = [(tensor.dtype, tensor.shape, tensor.requires_grad) for tensor in (actual, expected)]
        contents = [(tensor.tensors, tensor.context) for tensor in (actual, expected)]
        return sizes[0] == sizes[1] and same_bits(*contents)
    if isinstance(expected, Tensor):
        if isinstance(expected, DTensor):
            shards = [tensor._local_tensor for tensor in (actual, expected)]
            return actual.placements == expected.placements and same_bits(*shards)
        layouts = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (actual, expected)]
        flags = [(tensor.requires_grad, tensor.is_leaf) for tensor in (actual, expected)]
        return layouts[0] == layouts[1] and flags[0] == flags[1] and _bits(actual) == _bits(expected)
    if isinstance(expected, np.generic) and expected.dtype.char in "gG":
        return bool(actual == expected)  # its memory has random padding
    if isinstance(expected, np.ndarray | np.generic):
        return (actual.dtype, actual.shape, actual.tobytes()) == (
            expected.dtype,
            expected.shape,
            expected.tobytes(),
        )
    if isinstance(expected, Mapping):
        mappings = cast("Sequence[Mapping[Any, Any]]", (actual, expected))
        versions = [getattr(mapping, "_metadata", None) for mapping in mappings]
        return same_bits(*(list(mapping.items()) for mapping in mappings)) and same_bits(*versions)
    if isinstance(expected, list | tuple):
        items = cast("Sequence[Any]", expected)
        return len(actual) == len(items) and all(map(same_bits, actual, items))
    if isinstance(expected, float | complex):
        return np.complex128(actual).tobytes() == np.complex128(expected).tobytes()
    return actual == expected


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def whole(state: Any) -> Any:
    """Return a copy of a state in which every DTensor is a plain tensor."""

    def copied(tensor: Any) -> Tensor:
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return full.detach().clone()

    return pytree.tree_map_only(Tensor, copied, state)


def leftovers(directory: Path, counts: Sequence[int]) -> list[str]:
    """Return the names in a folder other than one complete checkpoint of each count."""
    names = [path.name for path in directory.iterdir()]
    extra = [name for name in names if name.partition(".")[0] not in map(str, counts)]
    return extra if extra or len(names) == len(counts) else names


def state_of(number: int) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(number)), "number": number, "none": {}}


def constant_model(value: float) -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def save_each(directory: Path, counts: Sequence[int], keep: int = 2, **more: Any) -> None:
    """Save these checkpoints one after the other. The part's state depends on the count."""
    checkpoints = Checkpoints(directory, keep=keep)
    for count in counts:
        checkpoints.save(count, part=Part(state_of(count)), wait=True, **more)


def load_each(directory: Path) -> dict[int, int]:
    """Load every listed checkpoint; return the number of the complete state of each count."""
    numbers: dict[int, int] = {}
    for count in Checkpoints(directory).steps():
        part = Part()
        assert Checkpoints(directory).load(count, part=part) == count
        numbers[count] = part.state["number"]
        assert same_bits(part.state, state_of(numbers[count]))
    return numbers


def peak_of_merge(directory: str, kind: str) -> None:
    """Print the peak memory of a merge in addition to the module, in units of a model.

    Run as a program: the peak that the system knows is that of the whole process.
    """
    small = Checkpoints(Path(directory, "small"))  # imports what a merge needs
    small.save(0, model=nn.Linear(2, 2))
    small.merge([0], [1.0], into=nn.Linear(2, 2), part="model")
    model = large_model(kind)
    size = sum(parameter.nbytes for parameter in model.parameters())
    before = _memory("VmRSS")
    Checkpoints(directory).merge(range(8), [1 / 8] * 8, into=model, part="model")
    print((_memory("VmHWM") - before) / size)


def _memory(what: str) -> int:
    """Return the memory of the process, or its peak, in bytes; `resource` would include the parent's."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))


def large_model(kind: str) -> nn.Module:
    """Return a model of 32 MB."""
    if kind == "one tensor":
        return nn.Linear(2896, 2896, bias=False)
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(6 if kind == "tied" else 8)]
    if kind == "tied":
        embedding, head = nn.Embedding(2048, 1024), nn.Linear(1024, 2048, bias=False)
        head.weight = embedding.weight
        return nn.Sequential(embedding, *layers, head)
    return nn.Sequential(*layers).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
