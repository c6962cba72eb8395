"""Which checkpoint is loaded, and what each part gets of it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch_bridge.checkpointing import folders, reading
from torch_bridge.checkpointing.loading_parts import LoadingPart
from torch_bridge.checkpointing.reading import RemovedError, SavedCheckpoint
from torch_bridge.distributed import processes
from torch_bridge.distributed.agreement import on_all_ranks

__all__ = ["RemovedError", "check_parts", "opened", "read", "unless_removed"]


def read(
    directory: Path, called: int | None, loading: Sequence[LoadingPart], held: ExitStack
) -> tuple[int | None, list[str]]:
    """Read what the parts get, of the checkpoint of this count, or of the last one that is not damaged.

    A collective: every rank calls it. Until `held` is closed, the checkpoint is not removed.

    Returns:
        The checkpoint's count, and what to warn of.

    Raises:
        RemovedError: A checkpoint was removed meanwhile: there may be a newer one.
    """
    there = _listed(directory)
    if called is not None:
        there = [_of_count(called, there, directory)]
    if not there:
        return None, []
    saved, wrong = reading.newest_sound(there[::-1], held)
    if saved is None:
        raise RuntimeError(f"{directory} has only damaged checkpoints: {'; '.join(wrong)}")
    check_parts(saved, [each.name for each in loading])
    rank = processes.rank()

    def read_parts() -> None:
        for each in loading:
            structure = {each.name: each.structure(saved.states)}
            of_rank = rank if each.is_of_each_rank else 0
            template, sharded = each.template(), each.sharded_parameters()
            state = reading.read(saved, structure, template, sharded, of_rank)[each.name]
            each.receive(state, rank >= len(saved.manifests))

    unless_removed([saved], read_parts)
    names = [each.name for each in loading if each.is_of_each_rank]
    kept = [value for each in loading for value in each.values_of_one_rank()]
    messages = reading.other_count_of_processes(saved, names, kept)
    if wrong:
        messages.append(f"{saved.found.path} is loaded: newer ones are damaged: {'; '.join(wrong)}")
    return saved.found.count, messages


def opened(directory: Path, counts: Sequence[int], held: ExitStack) -> list[SavedCheckpoint]:
    """The checkpoints of these counts, all their files checked.

    A collective: every rank calls it. Until `held` is closed, they are not removed.

    Raises:
        ValueError: One is not there.
        RuntimeError: One is damaged.
        RemovedError: One was removed meanwhile.
    """
    there = _listed(directory)
    found: list[SavedCheckpoint] = []
    for called in [_of_count(count, there, directory) for count in counts]:
        saved, wrong = reading.newest_sound([called], held)
        if saved is None:
            raise RuntimeError(f"{directory} has a damaged checkpoint: {wrong[0]}")
        found.append(saved)
    return found


def check_parts(saved: SavedCheckpoint, names: Sequence[str]) -> None:
    """Raises ValueError where the checkpoint lacks a part."""
    if unknown := sorted(set(names) - set(saved.parts)):
        raise ValueError(f"{saved.found.path} has the parts {saved.parts}, and not {unknown}")


def unless_removed(saved: Sequence[SavedCheckpoint], work: Callable[[], object]) -> None:
    """Do what reads the checkpoints' tensors, on all ranks.

    A collective: every rank calls it.

    Raises:
        RemovedError: One of the checkpoints is gone.
    """

    def is_there() -> bool:
        try:
            work()
        except FileNotFoundError:
            if all(each.found.path.is_dir() for each in saved):
                raise
            return False
        return True

    if not all(on_all_ranks(is_there)):
        raise RemovedError


def _listed(directory: Path) -> list[folders.Complete]:
    """What rank 0 sees in the directory. A collective: every rank calls it."""
    listed = on_all_ranks(lambda: folders.with_damaged(directory))[0]
    return [replace(found, path=directory / found.path.name) for found in listed]


def _of_count(count: int, there: Sequence[folders.Complete], directory: Path) -> folders.Complete:
    """The last checkpoint of this count."""
    found = [each for each in there if each.count == count]
    if not found:
        counts = sorted({each.count for each in there})
        raise ValueError(f"{directory} has no checkpoint {count}; it has {counts}")
    return found[-1]
