"""Whether several ranks can go on together after errors inside an update."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup, distributed_c10d

_PATIENCE = timedelta(minutes=1)
"""How long a rank waits for the others. One that still computes comes; one that waits for this rank can't."""

_meetings: Counter[str] = Counter()
"""How often these ranks have met: all count alike."""


class Recovery:
    """Compares, at the next update, how many collectives each rank began in the one that was broken off.

    Ranks that began equally many can go on. Otherwise the next collective of one would meet an older one of
    another. They compare through the store of the default process group, not by a collective.

    Args:
        groups: The process groups in which an update communicates.
        ranks: All ranks of the update.
        device: Of the tensors that are sent.
    """

    def __init__(self, groups: Sequence[ProcessGroup], ranks: Sequence[int], device: torch.device) -> None:
        self._backends: list[Any] = [group._get_backend(device) for group in groups]
        self._ranks = sorted(ranks)
        self._before: list[int] = []
        self._is_broken = False
        self._lost = ""

    def start(self) -> bool:
        """Begin an update.

        Returns:
            Whether the one before was broken off, on every rank.

        Raises:
            RuntimeError: It was, and the ranks can't go on together.
        """
        was_broken = self._is_broken
        if was_broken:
            self._meet()
            self._is_broken = False
        self._before = self._counts()
        return was_broken

    def note_error(self) -> None:
        """Note that an update was broken off on this rank."""
        self._is_broken = True

    def _counts(self) -> list[int]:
        """How many collectives this rank has begun, in each group."""
        try:
            return [backend._get_sequence_number_for_group() for backend in self._backends]
        except RuntimeError:  # a backend that does not count
            return []

    def _meet(self) -> None:
        if self._lost:
            raise RuntimeError(self._lost)
        if len(self._ranks) == 1:
            return
        begun = [now - before for now, before in zip(self._counts(), self._before, strict=True)]
        name = f"torch_bridge/broken updates of {self._ranks}"
        _meetings[name] += 1
        store, own = distributed_c10d._get_default_store(), distributed.get_rank()
        keys = {rank: f"{name}/{_meetings[name]}/{rank}" for rank in self._ranks}
        store.set(keys[own], repr(begun))
        try:
            store.wait(list(keys.values()), _PATIENCE)
        except RuntimeError as error:  # too late
            missing = [rank for rank, key in keys.items() if not store.check([key])]
            reason = f"did not have one within {_PATIENCE.seconds} seconds"
            self._lose(missing or self._ranks, reason, store, keys[own], error)
        others = {rank: store.get(key).decode() for rank, key in keys.items()}
        if different := [rank for rank, found in others.items() if found != repr(begun)]:
            self._lose(different, "had one after other collectives", store, keys[own])

    def _lose(
        self, ranks: list[int], reason: str, store: Any, key: str, cause: Exception | None = None
    ) -> None:
        self._lost = (
            f"rank {distributed.get_rank()} had an error in an update, and the ranks {ranks} {reason}: "
            "the ranks can't continue together. Stop all of them, and restart from a checkpoint; to skip a "
            "bad batch, skip it on every rank"
        )
        store.set(key, "lost")  # for a rank that comes later
        raise RuntimeError(self._lost) from cause
