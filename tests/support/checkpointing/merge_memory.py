"""A program that prints the peak memory of a merge in addition to the model, in units of a model.

The peak that the system knows is that of the whole process:
python -m support.checkpointing.merge_memory DIRECTORY KIND
"""

import sys
from pathlib import Path

import torch
from torch import nn

from torch_bridge import Checkpoints


def large_model(kind: str) -> nn.Module:
    """Return a model of 32 MB."""
    if kind == "one tensor":
        return nn.Linear(2896, 2896, bias=False)
    if kind == "tied":
        embedding = nn.Embedding(2048, 1024)
        head = nn.Linear(1024, 2048, bias=False)
        head.weight = embedding.weight
        return nn.Sequential(embedding, *_layers(6), head)
    if kind == "bfloat16":
        return nn.Sequential(*_layers(8)).to(torch.bfloat16)
    return nn.Sequential(*_layers(8))


def _layers(number: int) -> list[nn.Module]:
    return [nn.Linear(1024, 1024, bias=False) for _ in range(number)]


def _memory(entry: str) -> int:
    """Return an entry of the process's status in bytes; `resource` would include the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == entry:
            kilobytes, _ = value.split()
            return int(kilobytes) * 1024
    raise LookupError(entry)


def main() -> None:
    directory, kind = sys.argv[1:]
    small = Checkpoints(Path(directory, "small"))  # imports what a merge needs
    small.save(0, model=nn.Linear(2, 2))
    small.merge([0], [1.0], into=nn.Linear(2, 2), part="model")
    model = large_model(kind)
    size = sum(parameter.nbytes for parameter in model.parameters())
    before = _memory("VmRSS")
    Checkpoints(directory).merge(range(8), [1 / 8] * 8, into=model, part="model")
    print((_memory("VmHWM") - before) / size)


if __name__ == "__main__":
    main()
