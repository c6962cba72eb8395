"""Which samples make up a batch of all processes together, and which of them are this process's."""

from collections import deque
from collections.abc import Iterator, Sized
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

from torch.utils.data import BatchSampler

from torch_bridge.data.prefetching import Stateful

Items = TypeVar("Items", list[int], range)
Place = dict[str, Any]


@dataclass
class Epoch:
    """A run through the sampler that has come as far as `batch`."""

    samples: Iterator[int]
    batch: int = 0
    # For each batch that the loader has drawn and not handed out yet: the place after it, and whether
    # this process has samples in it.
    drawn: deque[tuple[Place, bool]] = field(default_factory=deque[tuple[Place, bool]])


class GlobalBatches(BatchSampler):
    """This process's share of every batch that all processes get together.

    Batch i is the samples [i·B, (i + 1)·B) of the sampler's order, B = processes · `batch_size`. Of its r
    samples, B but for a last batch that is incomplete, process k of n has [⌈k·r/n⌉, ⌈(k + 1)·r/n⌉).

    Args:
        sampler: The order of all samples, the same in every process. Where it has a state, or its
            iterators have, that is part of a place; otherwise it gives the same order again.
        batch_size: Samples that one process has in a batch.
        drop_last: Whether to leave out a last batch that is incomplete.
        rank: k.
        processes: n.
        equally_many: Whether a process without samples in the last batch gets one of them all the same:
            what comes of it is to be emptied then.
    """

    def __init__(
        self, sampler: Any, batch_size: int, drop_last: bool, rank: int, processes: int, equally_many: bool
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.rank, self.processes = rank, processes
        self._size, self._equally_many = batch_size * processes, equally_many
        self._opened: Epoch | None = None

    def __len__(self) -> int:
        whole, rest = divmod(len(cast(Sized, self.sampler)), self._size)
        if rest == 0 or self.drop_last:
            return whole
        return whole + (self._equally_many or len(self._share(range(rest))) > 0)

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.open()
        self._opened = None
        while batch := list(islice(epoch.samples, self._size)):
            if len(batch) < self._size and self.drop_last:
                return
            epoch.batch += 1
            share = self._share(batch)
            epoch.drawn.append((self.place(epoch), len(share) > 0))
            if share or self._equally_many:
                yield share or batch[:1]

    def open(self) -> Epoch:
        """The epoch that the next iteration goes through: a new one, unless a place was gone to."""
        if self._opened is None:
            self._opened = Epoch(iter(self.sampler))
        return self._opened

    def place(self, epoch: Epoch) -> Place:
        return {"batch": epoch.batch, "sampler": _state(self.sampler), "order": _state(epoch.samples)}

    def go_to(self, place: Place) -> None:
        """Make the next iteration go on there; after an epoch's last batch, with the next epoch."""
        if isinstance(self.sampler, Stateful):
            self.sampler.load_state_dict(place["sampler"])
        samples, done = iter(self.sampler), place["batch"] * self._size
        if isinstance(samples, Stateful):
            samples.load_state_dict(place["order"])
        elif not isinstance(self.sampler, Stateful):
            deque(islice(samples, done), maxlen=0)
        self._opened = Epoch(samples, place["batch"])
        left = len(cast(Sized, self.sampler)) - done
        if left < (self._size if self.drop_last else 1):
            deque(samples, maxlen=0)
            self._opened = None

    def _share(self, batch: Items) -> Items:
        first, end = (-(-k * len(batch) // self.processes) for k in (self.rank, self.rank + 1))
        return batch[first:end]


def _state(of: object) -> Any:
    """A copy, for a sampler that shows its own variables."""
    return deepcopy(of.state_dict()) if isinstance(of, Stateful) else None
