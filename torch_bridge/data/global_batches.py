"""Global batches: which samples all ranks load together, and which of them this rank loads."""

from collections import deque
from collections.abc import Callable, Iterator, Sized
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import BatchSampler

from torch_bridge.checkpointing.stateful import Stateful

Items = TypeVar("Items", list[int], range)
Place = dict[str, Any]


@dataclass
class Epoch:
    """One iteration through the sampler, of which `batch` batches have been drawn."""

    samples: Iterator[int]
    batch: int = 0
    drawn: deque[tuple[Place, bool]] = field(default_factory=deque[tuple[Place, bool]])
    """For each batch that was drawn and not handed out yet: the place after it, and whether this rank has
    samples in it."""


class GlobalBatches(BatchSampler):
    """This rank's share of every global batch.

    With n ranks and B = n · `batch_size`, global batch i has the samples [i·B, (i + 1)·B) of the sampler's
    order. Of its r samples (B, or fewer in an incomplete last batch) rank k has [⌈k·r/n⌉, ⌈(k + 1)·r/n⌉).

    Args:
        sampler: The order of all samples, the same on every rank. If the sampler or its iterators have a
            state, it is part of a place. A sampler without one must give the same order again.
        batch_size: Samples that one rank has in a batch.
        drop_last: Whether to leave out a last batch that is incomplete.
        rank: k.
        processes: n.
        equally_many: Whether all ranks get the same number of batches. A rank without samples in the last
            batch then gets one sample of it, and the loader cuts the rows of that batch away.
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
        length = len(cast(Sized, self.sampler))
        while True:
            # A last batch ends before the sampler does: after its end a state may be that of the next epoch.
            left = length - epoch.batch * self._size
            is_last = 0 < left < self._size and not self.drop_last
            if not (batch := list(islice(epoch.samples, left if is_last else self._size))):
                return
            if len(batch) < self._size and self.drop_last:
                return
            epoch.batch += 1
            share = self._share(batch)
            epoch.drawn.append((self.place(epoch), len(share) > 0))
            if share or self._equally_many:
                yield share or batch[:1]

    def open(self) -> Epoch:
        """The epoch that the next iteration goes through: a new one, or the one that `go_to` has set."""
        if self._opened is None:
            self._opened = Epoch(iter(self.sampler))
        return self._opened

    def place(self, epoch: Epoch) -> Place:
        return {"batch": epoch.batch, "sampler": _state(self.sampler), "order": _state(epoch.samples)}

    def go_to(self, place: Place) -> None:
        """Make the next iteration begin at this place or, at an epoch's end, with the next epoch."""
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

    def kept(self) -> Callable[[], None]:
        """What puts the sampler, and the epoch that is open, back to where they are now."""
        sampler, opened, state = cast("Any", self.sampler), self._opened, _state(self.sampler)
        attributes: dict[str, Any] = getattr(sampler, "__dict__", {}).copy()
        generator = getattr(sampler, "generator", None)
        random = generator.get_state() if isinstance(generator, torch.Generator) else None

        def put_back() -> None:
            if isinstance(sampler, Stateful):
                sampler.load_state_dict(state)
                # Some take a state as an order for their next iteration only.
                if attributes:
                    vars(sampler).clear()
                    vars(sampler).update(attributes)
            if random is not None:
                cast("torch.Generator", generator).set_state(random)
            self._opened = opened

        return put_back

    def _share(self, batch: Items) -> Items:
        first, end = (-(-k * len(batch) // self.processes) for k in (self.rank, self.rank + 1))
        return batch[first:end]


def _state(of: object) -> Any:
    """A copy of the state: a sampler may return the dictionary that it goes on to change."""
    return deepcopy(of.state_dict()) if isinstance(of, Stateful) else None
