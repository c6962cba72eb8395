"""The memory of a merge."""

from pathlib import Path

import torch
from torch import nn

from torch_bridge import Checkpoints


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
