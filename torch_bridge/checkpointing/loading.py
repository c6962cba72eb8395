"""Which checkpoint is loaded, and what each part gets of it."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch_bridge.checkpointing import folders, reading
from torch_bridge.checkpointing.loading_parts import LoadingPart
from torch_bridge.checkpointing.reading import RemovedError
from torch_bridge.distributed import processes
from torch_bridge.distributed.agreement import on_all_ranks

__all__ = ["RemovedError", "read"]


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
    listed = on_all_ranks(lambda: folders.with_damaged(directory))[0]  # rank 0 decides
    there = [replace(found, path=directory / found.path.name) for found in listed]
    if called is not None:
        counts = sorted({found.count for found in there})
        there = [found for found in there if found.count == called][-1:]
        if not there:
            raise ValueError(f"{directory} has no checkpoint {called}; it has {counts}")
    if not there:
        return None, []
    saved, wrong = reading.newest_sound(there[::-1], held)
    if saved is None:
        raise RuntimeError(f"{directory} has only damaged checkpoints: {'; '.join(wrong)}")
    if unknown := sorted({each.name for each in loading} - set(saved.parts)):
        raise ValueError(f"{saved.found.path} has the parts {saved.parts}, and not {unknown}")
    rank = processes.rank()

    def read_parts() -> bool:
        """Whether the checkpoint was there."""
        try:
            for each in loading:
                structure = {each.name: each.structure(saved.states)}
                of_rank = rank if each.is_of_each_rank else 0
                template, sharded = each.template(), each.sharded_parameters()
                state = reading.read(saved, structure, template, sharded, of_rank)[each.name]
                each.receive(state, rank >= len(saved.manifests))
        except FileNotFoundError:
            if saved.found.path.is_dir():
                raise
            return False
        return True

    if not all(on_all_ranks(read_parts)):
        raise RemovedError
    names = [each.name for each in loading if each.is_of_each_rank]
    kept = [value for each in loading for value in each.values_of_one_rank()]
    messages = reading.other_count_of_processes(saved, names, kept)
    if wrong:
        messages.append(f"{saved.found.path} is loaded: newer ones are damaged: {'; '.join(wrong)}")
    return saved.found.count, messages
