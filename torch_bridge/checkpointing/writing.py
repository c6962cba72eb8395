"""Writing a checkpoint: each rank writes its own files, and sees by files in the folder what others wrote.

No rank calls a collective. So a save in the background goes on whatever happens to the process group, even
when it is destroyed.

Rank 0 writes every value that is not sharded, and the digests of these tensors. The other ranks wait for
them, and write only the values that differ from rank 0's. Sharded tensors are written by the ranks that hold
the shards. Each rank writes its manifest last. When rank 0 finds all manifests, it makes the checkpoint
complete. While a rank writes it holds a lock, by which the others notice that its process has ended.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_bridge.checkpointing import encoding, files, folders, manifest, tensor_files
from torch_bridge.checkpointing.folders import STATE
from torch_bridge.checkpointing.writing_ranks import WritingRanks
from torch_bridge.distributed.dtensors import mesh_of

_FOLDER_TIMEOUT = 60.0  # seconds until every rank sees a folder that rank 0 has made
_FILES_TIMEOUT = 3600.0  # seconds that a rank waits for the files of the others
_LONGEST_PAUSE = 0.5  # seconds between two looks into the folder


@dataclass(frozen=True)
class CheckpointWriter:
    """What one rank writes of a checkpoint.

    Attributes:
        path: The folder, which rank 0 has made.
        unfinished: The same folder on rank 0, None on the others.
        save: Names this save, on all ranks.
        number: Which save into the directory this is.
        ranks: The locks of all ranks.
        parts: Each part as JSON, which names tensors by key.
        tensors: The tensors by key.
    """

    path: Path
    unfinished: folders.Unfinished | None
    count: int
    save: str
    number: int
    ranks: WritingRanks
    rank: int
    processes: int
    parts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    keep: int

    def write(self) -> None:
        """Write this rank's files. Return when the checkpoint is complete."""
        try:
            if self.unfinished is None:
                self._write_differences()
            else:
                self._write_all(self.unfinished)
        except BaseException as error:
            # On a full disk this makes room for the note to the others.
            shutil.rmtree(self.path / str(self.rank), ignore_errors=True)
            with suppress(OSError):
                text = f"{type(error).__name__}: {error}"
                files.write_whole(self.path / f"{self.rank}.failed", text.encode())
            raise
        finally:
            if self.unfinished is not None:
                if self.processes == 1:  # with several, the others still read there why it failed
                    self.unfinished.discard()
                self.unfinished.unlock()
            self.ranks.release()

    def _write_all(self, unfinished: folders.Unfinished) -> None:
        """What rank 0 does."""
        directory = self.path.parent
        folders.clear(directory)
        own = self.path / "0"
        own.mkdir()
        digests = {} if self.processes == 1 else self._digests()
        content = encoding.dumps({"parts": self.parts, "digests": digests})
        files.write_whole(own / STATE, content.encode())
        self._write_tensors(own, self.tensors, [])
        missing = set(range(1, self.processes))

        def are_there() -> bool:
            missing.difference_update(
                [rank for rank in missing if (self.path / str(rank) / manifest.NAME).exists()]
            )
            return not missing

        self._wait(are_there, missing)
        unfinished.commit()
        folders.prune(directory, self.keep)

    def _write_differences(self) -> None:
        """What every other rank does."""
        digests = self._digests()
        of_first, own = self.path / "0" / STATE, self.path / str(self.rank)
        unshared = f"{self.path.parent} is not a folder that all processes share"
        self._wait(self.path.is_dir, {0}, unshared)
        self._wait(of_first.exists, {0})
        first = json.loads(of_first.read_bytes())
        own.mkdir()
        parts = {
            name: part
            for name, part in self.parts.items()
            if encoding.dumps(part) != encoding.dumps(first["parts"].get(name))
        }
        different = [key for key, digest in digests.items() if digest != first["digests"].get(key)]
        sharded = {key: tensor for key, tensor in self.tensors.items() if key not in digests}
        files.write_whole(own / STATE, encoding.dumps({"parts": parts}).encode())
        named = {key_of_rank(key, self.rank): self.tensors[key] for key in different}
        self._write_tensors(own, sharded | named, [*parts, *different])
        self._wait(lambda: not self.path.exists(), {0})

    def _write_tensors(self, own: Path, tensors: Mapping[str, Tensor], different: list[str]) -> None:
        tensor_files.write(own, tensors)
        parts = list(self.parts)
        manifest.write(own, self.count, self.processes, parts, different, self.save, self.number)

    def _digests(self) -> dict[str, str]:
        """The digest of every tensor that is not sharded, by key."""
        return {key: _digest(tensor) for key, tensor in self.tensors.items() if not mesh_of(tensor)}

    def _wait(self, is_done: Callable[[], bool], ranks: Collection[int], missing: str = "") -> None:
        """Wait for other ranks.

        Args:
            is_done: Whether they have done what is waited for.
            ranks: Which ones; `is_done` may change it.
            missing: What to say where the folder has not come into sight after a minute. Without this a
                folder that is not there has been removed.

        Raises:
            RuntimeError: Another rank has failed, or its process has ended.
            FileNotFoundError: The folder was removed.
            TimeoutError: The other ranks took too long.
        """
        began, pause = time.monotonic(), 0.001
        while True:
            is_there = self.path.is_dir()
            if is_done():
                return
            with suppress(FileNotFoundError):  # rank 0 renames the folder when the checkpoint is complete
                for failed in self.path.glob("*.failed"):
                    text = failed.read_text()
                    raise RuntimeError(f"rank {failed.stem} failed to save {self.count}: {text}")
            if not is_there and not missing:
                raise FileNotFoundError(f"{self.path} was removed while it was written")
            if (ended := self.ranks.ended(ranks)) is not None:
                raise RuntimeError(
                    f"rank {ended} ended before its part of checkpoint {self.count} was written: the "
                    "checkpoint is not complete"
                )
            if time.monotonic() - began > (_FOLDER_TIMEOUT if missing else _FILES_TIMEOUT):
                raise TimeoutError(missing or f"the other processes did not write their files in {self.path}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def key_of_rank(key: str, rank: int) -> str:
    """The key under which a rank writes a tensor that differs from rank 0's."""
    return f"{key}@{rank}"


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} ".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
