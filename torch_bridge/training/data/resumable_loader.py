"""A data loader whose position is (epoch, batch), whatever the number of ranks and workers."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch.utils.data import BatchSampler, DataLoader

from plateau_jax.arguments import checks
from plateau_jax.saved_states.formats import Format, check_entries, reading_state_of
from torch_bridge.training.distributed import processes

EpochAndBatch = tuple[int, int]  # an epoch, and the number of its batches already handed out


class _LoaderState(TypedDict):
    kind: str
    format: int
    arguments: dict[str, int | bool]
    """The arguments that decide the order."""
    epoch: int
    """The epoch that continues, counted from 0."""
    batch: int
    """The number of its batches already handed out."""


_FORMAT = Format("loader", _LoaderState)

_END: Any = object()


@dataclass(eq=False)
class GlobalBatches(BatchSampler):
    """This rank's part of every batch that all ranks load together.

    With n ranks and B = n · `batch_size`, global batch i has the samples [i·B, (i + 1)·B) of the
    epoch's order. Of its r samples (B, or fewer in an incomplete last batch) rank k has
    [⌈k·r/n⌉, ⌈(k + 1)·r/n⌉).
    """

    samples: int
    """The length of the dataset."""
    batch_size: int
    """Samples of one rank in a batch."""
    shuffle: bool
    """Draw a new order for each epoch; otherwise keep that of the dataset."""
    drop_last: bool
    """Leave out an incomplete last batch."""
    seed: int
    """The seed of all orders."""
    rank: int
    world_size: int
    start: EpochAndBatch = (0, 0)
    """The position at which the next iteration begins."""

    def __post_init__(self) -> None:
        super().__init__(range(self.samples), self.batch_size, self.drop_last)
        self.global_size = self.batch_size * self.world_size
        self.count, self._remainder = divmod(self.samples, self.global_size)
        """The number of global batches in an epoch, and of samples in an incomplete last one."""
        if self._remainder and not self.drop_last:
            self.count += 1

    def arguments(self) -> dict[str, int | bool]:
        """Return the arguments that decide the order, which any number of ranks can share."""
        return {
            "samples": self.samples,
            "batch_size": self.global_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.seed,
        }

    def check_sizes(self, *, training: bool) -> None:
        """Reject a dataset without a batch, and in training one whose last batch misses a rank."""
        if self.count == 0:
            raise ValueError(
                f"{self.samples} samples give no batch of batch_size = {self.batch_size} for "
                f"world_size = {self.world_size} with drop_last = {self.drop_last}"
            )
        if training and not self.drop_last and 0 < self._remainder < self.world_size:
            raise ValueError(
                f"{self.samples} samples leave {self._remainder} for {self.world_size} processes "
                "in the last batch, and in training every process needs some: give drop_last = "
                "True, or another batch_size"
            )

    def __len__(self) -> int:
        last = self.count - 1
        if self._places_in(last):
            return self.count
        return last  # in evaluation, a rank may have no sample of the last batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first_batch = self.start
        order = torch.arange(self.samples, device="cpu")
        if self.shuffle:
            # As in torch's DistributedSampler, the seed and the epoch decide the order, so a saved
            # state has no state of a generator.
            seed = (self.seed + epoch) % 2**32
            generator = torch.Generator("cpu").manual_seed(seed)
            order = torch.randperm(self.samples, generator=generator, device="cpu")
        for batch in range(first_batch, self.count):
            places = self._places_in(batch)
            if places:  # else this rank has no sample of the last batch
                yield order[places.start : places.stop].tolist()

    def _places_in(self, batch: int) -> range:
        """Return the places, in the epoch's order, of this rank's samples in a global batch."""
        first = batch * self.global_size
        size = min(self.global_size, self.samples - first)
        # -(-a // n) rounds up. Five samples over three ranks begin at
        # ⌈0/3⌉, ⌈5/3⌉, ⌈10/3⌉ = 0, 2, 4 and are split 2, 2, 1.
        begin = -(-self.rank * size // self.world_size)
        end = -(-(self.rank + 1) * size // self.world_size)
        return range(first + begin, first + end)


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose state is its arguments and its position after the last batch handed out.

    Args:
        dataset: The samples.
        batches: The indices of this rank's batches.
        **settings: Other arguments of `DataLoader`.
    """

    batch_sampler: GlobalBatches  # pyright: ignore[reportIncompatibleVariableOverride]  (torch's may be None)

    def __init__(self, dataset: Any, batches: GlobalBatches, **settings: Any) -> None:
        # DataLoader draws the workers' seeds from this generator at each iteration. If the orders
        # were drawn from it too, a resumed run would get different ones. The seeds differ between
        # ranks.
        seeds = torch.Generator("cpu").manual_seed(batches.seed + batches.rank)
        super().__init__(
            dataset, batches.batch_size, drop_last=batches.drop_last, generator=seeds, **settings
        )
        # As an argument it would hide batch_size and drop_last, which libraries read, and
        # DataLoader rejects an assignment.
        object.__setattr__(self, "batch_sampler", batches)
        # `state_dict` saves `_position`; the next iteration begins at `_next_start`. With 3 batches
        # per epoch they are (0, 2) and (1, 0) once batches 0 and 1 of epoch 0 were handed out: a
        # new iteration is the next epoch, but a resumed run gets batch 2 first. After batch 2 both
        # are (1, 0).
        self._position: EpochAndBatch = (0, 0)
        self._next_start: EpochAndBatch = (0, 0)
        self._iteration: object = None  # the iteration that the position belongs to

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch names its class)
        if self.batch_sampler.world_size == 1 < processes.world_size():
            raise RuntimeError(
                f"the loader was built for one process, and there are {processes.world_size()} "
                "now: build it after the process group"
            )
        this_iteration = object()
        self._iteration = this_iteration
        self._position = self._next_start
        self.batch_sampler.start = self._next_start
        epoch, batch = self._next_start
        self._next_start = (epoch + 1, 0)
        with on_cpu():
            batches = super().__iter__()
        while True:
            # Persistent workers serve one iteration: an older one would take batches away from it.
            if self._iteration is not this_iteration:
                raise RuntimeError(
                    "this iteration was ended: another has begun, or a state was loaded"
                )
            with on_cpu():
                loaded = next(batches, _END)
            if loaded is _END:
                # Also on a rank without samples in the last batch.
                self._position = self._next_start
                return
            batch += 1
            if batch < self.batch_sampler.count:
                self._position = (epoch, batch)
            else:
                self._position = self._next_start
            yield loaded

    def state_dict(self) -> dict[str, Any]:
        """Return the arguments that decide the order, and the position after the last batch."""
        epoch, batch = self._position
        return _FORMAT.build(
            arguments=self.batch_sampler.arguments(),
            epoch=epoch,
            batch=batch,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration begin at the position in a state.

        Args:
            state_dict: A state that `state_dict` returned.

        Raises:
            ValueError: `state_dict` is not the state of a loader with these arguments. Nothing was
                changed.
        """
        with reading_state_of("a loader that make_loader built", state_dict):
            state = _FORMAT.read("state_dict", state_dict)
            self._check_arguments(state["arguments"])
            epoch = checks.at_least("epoch", state["epoch"], 0)
            last = self.batch_sampler.count - 1  # of an epoch
            batch = checks.in_range("batch", state["batch"], 0, last)
        self._position = (epoch, batch)
        self._next_start = self._position
        self._iteration = None

    def _check_arguments(self, saved: Mapping[str, Any]) -> None:
        """Raise a ValueError if the state was saved by a loader with different arguments."""
        arguments = self.batch_sampler.arguments()
        check_entries("arguments", saved, arguments)
        changes = [
            f"{name} = {checks.short_repr(saved[name])} (now {now})"
            for name, now in arguments.items()
            if saved[name] != now
        ]
        if changes:
            raise ValueError(
                f"state_dict was saved by a loader with {', '.join(changes)}; batch_size is "
                "that of all processes together"
            )


def on_cpu() -> AbstractContextManager[Any]:
    """Create tensors on the CPU by default. Costs nothing if that is already the default."""
    if torch.get_default_device().type == "cpu":
        return nullcontext()
    return torch.device("cpu")
