"""A checkpoint as it is written, by all processes, each in its own time: they meet in the folder alone.

So nothing that happens to the process group, its end included, disturbs a save in the background.

The first process writes all that is not sharded, and the digests of its tensors. The others wait for these,
and write what is not the same with them. Then each leaves its manifest; the first one, when it finds them
all, makes the checkpoint complete.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_bridge.checkpointing import folders, manifest, shards, structure
from torch_bridge.distributed.dtensors import mesh_of

STATE = "state.json"
_FIRST_SIGHT = 60.0  # seconds until a folder that the first process has made is seen by all
_LIMIT = 3600.0  # seconds that a process waits for the others' files
_LONGEST_PAUSE = 0.5


@dataclass(frozen=True)
class Save:
    """What this process saves: its parts as JSON, and the tensors that they name.

    Attributes:
        path: The folder that the first process has made.
        unfinished: The same, where this is the first process.
    """

    path: Path
    unfinished: folders.Unfinished | None
    count: int
    rank: int
    processes: int
    parts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    keep: int

    def __call__(self) -> None:
        try:
            if self.unfinished is None:
                self._follow()
            else:
                self._lead(self.unfinished)
        except BaseException as error:
            shutil.rmtree(self.path / str(self.rank), ignore_errors=True)  # room for a note on a full disk
            with suppress(OSError):
                text = f"{type(error).__name__}: {error}"
                folders.write(self.path / f"{self.rank}.failed", text.encode())
            raise
        finally:
            if self.unfinished is not None:
                if self.processes == 1:  # no other looks there for why it has failed
                    self.unfinished.discard()
                self.unfinished.unlock()

    def _lead(self, unfinished: folders.Unfinished) -> None:
        directory = self.path.parent
        folders.clear(directory)
        own = self.path / "0"
        own.mkdir()
        digests = {} if self.processes == 1 else self._digests()
        content = structure.dumps({"parts": self.parts, "digests": digests})
        folders.write(own / STATE, content.encode())
        self._write(own, self.tensors, [])
        others = [self.path / str(rank) / manifest.NAME for rank in range(1, self.processes)]
        self._wait(lambda: all(path.exists() for path in others))
        unfinished.commit()
        folders.prune(directory, self.count, self.keep)

    def _follow(self) -> None:
        digests = self._digests()
        of_first, own = self.path / "0" / STATE, self.path / str(self.rank)
        self._wait(self.path.is_dir, f"{self.path.parent} is not a folder that all processes share")
        self._wait(of_first.exists)
        first = json.loads(of_first.read_bytes())
        own.mkdir()
        parts = {
            name: part
            for name, part in self.parts.items()
            if structure.dumps(part) != structure.dumps(first["parts"].get(name))
        }
        different = [key for key, digest in digests.items() if digest != first["digests"].get(key)]
        sharded = {key: tensor for key, tensor in self.tensors.items() if key not in digests}
        folders.write(own / STATE, structure.dumps({"parts": parts}).encode())
        named = {own_key(key, self.rank): self.tensors[key] for key in different}
        self._write(own, sharded | named, [*parts, *different])
        self._wait(lambda: not self.path.exists())

    def _write(self, own: Path, tensors: Mapping[str, Tensor], different: list[str]) -> None:
        shards.write(own, tensors)
        manifest.write(own, self.count, self.processes, list(self.parts), different)

    def _digests(self) -> dict[str, str]:
        """Of what is not sharded."""
        return {key: _digest(tensor) for key, tensor in self.tensors.items() if not mesh_of(tensor)}

    def _wait(self, is_done: Callable[[], bool], unseen: str = "") -> None:
        """For another process.

        Raises:
            RuntimeError: It has failed.
            FileNotFoundError, TimeoutError: It has gone.
        """
        began, pause = time.monotonic(), 0.001
        while True:
            is_there = self.path.is_dir()
            if is_done():
                return
            with suppress(FileNotFoundError):  # the first process renames it when it is complete
                for failed in self.path.glob("*.failed"):
                    text = failed.read_text()
                    raise RuntimeError(f"process {failed.stem} failed to save {self.count}: {text}")
            if not is_there and not unseen:
                raise FileNotFoundError(f"{self.path} was removed while it was written")
            if time.monotonic() - began > (_FIRST_SIGHT if unseen else _LIMIT):
                raise TimeoutError(unseen or f"the other processes did not write their part of {self.path}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def own_key(key: str, rank: int) -> str:
    """Of a tensor that is not the same in the first process."""
    return f"{key}@{rank}"


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} ".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
