"""Checkpoints: every part of a run, saved in the background, complete or absent, and checked when loaded."""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import torch
from torch import Tensor

from torch_bridge.checkpointing import folders, parts
from torch_bridge.checkpointing.background import Background
from torch_bridge.checkpointing.parts import Part
from torch_bridge.checkpointing.together import together
from torch_bridge.core import checks
from torch_bridge.distributed import processes


class Checkpoints:
    """The checkpoints of a run in a folder, by count: of updates, say.

    A checkpoint holds parts, given by name: things that have `state_dict` and `load_state_dict` (a
    `TrainStep`, a loader, a `MetricLog`, a module, an optimizer, a scheduler), and dictionaries and lists
    of plain values, which `load` refills in place. Values may be whatever JSON has, and tuples, sets,
    bytes, dictionaries with other keys, NumPy's arrays, tensors; they come back as they were.

    `save` takes the state of the moment and returns; it is written in the background, by way of
    `torch.distributed.checkpoint`. A checkpoint is complete or absent: whenever a process is killed, the
    last complete one is there, and what is left of an unfinished one is removed by a later save. A normal
    end of the program completes what is pending. An error in the background is raised by the next call;
    where none follows, it is printed at the end.

    `load` compares the SHA-256 of every file before anything else, and runs no code from a checkpoint.

    Under several processes each of them calls `save` and `load`, with the same arguments, on a folder
    that they share. Sharded tensors are written by the processes that hold them, and come back in the form
    that the part has now: on another number of processes, under DDP, FSDP2 or on one process. What is
    the same in all processes is written once, anything else for each; random numbers, for instance. On
    fewer processes what is a missing process's is dropped; on more, a `TrainStep` that has no random
    numbers and carry there goes on with those that it has, and of all else the new processes get the
    first one's. A warning says so.

    Args:
        directory: The folder; it is made by the first save.
        keep: How many checkpoints are kept: those with the highest counts, and the newest in any case.

    Raises:
        NotADirectoryError: There is something else in the folder's place.
        TypeError, ValueError: `keep` is not a positive integer.

    >>> import tempfile, torch
    >>> from torch_bridge import Checkpoints
    >>> folder, model, progress = tempfile.TemporaryDirectory(), torch.nn.Linear(2, 1), {"epoch": 1}
    >>> checkpoints = Checkpoints(folder.name)
    >>> checkpoints.save(10, model=model, progress=progress)
    >>> progress["epoch"] = 2
    >>> checkpoints.load(model=model, progress=progress)
    10
    >>> progress
    {'epoch': 1}
    >>> folder.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3) -> None:
        self.keep = checks.at_least("keep", keep, 1)
        self.directory = Path(directory).absolute()
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(f"directory = {str(directory)!r} is not a folder")
        self._background = Background.of(os.path.realpath(self.directory))

    def counts(self) -> list[int]:
        """Those that are complete, ascending; a save that is pending is waited for."""
        self._background.finish()
        return sorted({found.count for found in folders.complete(self.directory)})

    def save(self, /, count: int, wait: bool = False, **parts_by_name: Part) -> None:
        """Save the parts as they are now; a save that is still pending is waited for.

        Args:
            count: What the checkpoint is called, at least 0. One of this count that is there already is
                replaced.
            wait: Whether to return only when it is complete.
            **parts_by_name: The parts.

        Raises:
            TypeError: A part has no state, or in it something that a checkpoint does not hold.
            ValueError: No parts; a negative count; not the same count and names in all processes.
            Exception: What a part or the system raises; or, in the other processes, RuntimeError.
        """
        # Imported when asked for: torch.distributed.checkpoint takes as long as half of torch.
        from torch_bridge.checkpointing.saving import Save

        unfinished: folders.Unfinished | None = None
        snapshots: dict[str, parts.Snapshot] = {}

        def begin() -> tuple[int, list[str], str]:
            nonlocal unfinished
            self._background.finish()
            called = checks.at_least("count", count, 0)
            parts.check(parts_by_name)
            for name, part in parts_by_name.items():
                snapshots[name] = parts.snapshot(name, part)
            if processes.is_main():
                unfinished = folders.Unfinished(self.directory, called)
            return called, list(parts_by_name), unfinished.path.name if unfinished else ""

        try:
            with _ordinary_mode():
                told = together(begin)
            _check_same([each[:2] for each in told])
            (called, _, name), *_ = told
            save = Save(
                path=self.directory / name,
                unfinished=unfinished,
                count=called,
                rank=processes.rank(),
                processes=processes.count(),
                parts={name: each.structure for name, each in snapshots.items()},
                tensors={key: tensor for each in snapshots.values() for key, tensor in each.tensors.items()},
                keep=self.keep,
            )
            self._background.start(save)
        except BaseException:
            if unfinished is not None and self._background.is_idle:
                unfinished.discard()
                unfinished.unlock()
            raise
        if wait:
            self._background.finish()

    def load(self, /, count: int | None = None, **parts_by_name: Part) -> int | None:
        """Give the parts back what they were saved with, all of them or none.

        Args:
            count: Which checkpoint; by default the one with the highest count that is sound. A warning
                says which ones were passed over.
            **parts_by_name: The parts, or some of them, of the same names as when they were saved.

        Returns:
            The count of the checkpoint; None where there is none, and none was asked for.

        Raises:
            TypeError: `count` is not an integer; a part has no state, or is none.
            ValueError: There is no checkpoint of this count; it has no parts of these names, or ones of
                another kind; the arguments are not the same in all processes.
            RuntimeError: The checkpoint is damaged, or all are; or another process has failed.
            Exception: What a part raises that refuses its state. In any case all parts are as before.
        """
        from torch_bridge.checkpointing import loading

        def begin() -> tuple[int | None, list[str], list[folders.Complete]]:
            self._background.finish()
            called = None if count is None else checks.at_least("count", count, 0)
            parts.check(parts_by_name)
            return called, list(parts_by_name), folders.complete(self.directory)

        told = together(begin)
        _check_same([each[:2] for each in told])
        called, names, there = told[0]
        there = [replace(found, path=self.directory / found.path.name) for found in there]
        if called is not None:
            counts = sorted({found.count for found in there})
            there = [found for found in there if found.count == called][-1:]
            if not there:
                raise ValueError(f"{self.directory} has no checkpoint {called}; it has {counts}")
        if not there:
            return None
        saved, wrong = loading.newest_sound(there[::-1])
        if saved is None:
            raise RuntimeError(f"{self.directory} has no sound checkpoint: {'; '.join(wrong)}")
        if unknown := sorted(set(names) - set(saved.parts)):
            raise ValueError(f"{saved.found.path} has the parts {saved.parts}, and not {unknown}")
        now: dict[str, parts.Snapshot | None] = {}
        states: dict[str, Any] = {}

        def read() -> None:
            template: dict[str, Tensor] = {}
            for name, part in parts_by_name.items():
                now[name] = parts.snapshot_if_any(name, part)
                template |= parts.template(name, part, now[name])
            for name, state in loading.read(saved, names, template).items():
                states[name] = parts.unpacked(name, parts_by_name[name], state)
                if processes.rank() >= len(saved.manifests):
                    parts.start_anew(parts_by_name[name], states[name], now[name])

        with _ordinary_mode():
            together(read)
            said = loading.other_processes(saved, names, parts.alone(parts_by_name, states))
            if wrong:
                said.append(f"{saved.found.path} is loaded: newer ones are damaged: {'; '.join(wrong)}")
            for message in said:
                warnings.warn(message, UserWarning, stacklevel=2)
            parts.load(parts_by_name, states, now)
        return saved.found.count

    def __reduce__(self) -> Never:
        raise TypeError("Checkpoints can't be copied or pickled: build others on the same folder")


def _check_same(told: Sequence[tuple[int | None, list[str]]]) -> None:
    for rank, each in enumerate(told):
        if each != told[0]:
            raise ValueError(
                f"process 0 asks for checkpoint {told[0][0]} of the parts {told[0][1]}, "
                f"and process {rank} for {each[0]} of {each[1]}"
            )


@contextmanager
def _ordinary_mode() -> Generator[None]:
    """What is made here lasts: no tensors of inference mode, whatever mode the caller is in."""
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
    with torch.inference_mode(False), grad_mode:
        yield
