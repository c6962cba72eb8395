"""The states of random number generators: those that belong to a device, and all of a process."""

import random
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from plateau_jax.saved_states.formats import Format

# The states of torch's generators for a device: the CPU's and, for a CUDA device, that device's.


def get_states_of_device(device: torch.device) -> dict[str, Tensor]:
    """Return states that the generators replace, and never change."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_states_of_device(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


# The states of a process: those of the generators that Python, NumPy and torch use by default.


class RandomStates(TypedDict):
    kind: str
    format: int
    python: dict[str, Any]
    """The result of `random.getstate`: `version`, `words` as an array, and `gauss_next`."""
    numpy: dict[str, Any]
    """The result of `numpy.random.get_state(legacy=False)`."""
    cpu: Tensor
    """The state of torch's generator of the CPU, uint8 of shape (bytes,)."""
    cuda: Tensor | None
    """The state of torch's generator of the current CUDA device, in the same form; None if the
    process has not used CUDA."""


RANDOM_STATES_FORMAT = Format("random_states", RandomStates)


def get_states_of_process() -> dict[str, Any]:
    """Return `RandomStates`, which the generators replace, and never change."""
    version, words, gauss_next = random.getstate()
    python = {"version": version, "words": np.array(words, np.uint32), "gauss_next": gauss_next}
    cuda = None
    # Otherwise the generators have drawn nothing, and a process that starts CUDA can't be forked.
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state()
    return RANDOM_STATES_FORMAT.build(
        python=python,
        numpy=np.random.get_state(legacy=False),  # noqa: NPY002 (the state to save)
        cpu=torch.get_rng_state(),
        cuda=cuda,
    )


def set_states_of_process(states: RandomStates) -> None:
    python = states["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss_next"]))
    np.random.set_state(states["numpy"])  # noqa: NPY002 (the state to restore)
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
