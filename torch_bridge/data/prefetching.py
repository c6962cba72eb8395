"""Copies to the device that run ahead of the training loop."""

from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor
from torch.cuda import Event, Stream
from torch.utils import _pytree as pytree

from torch_bridge.core import checks

Item = TypeVar("Item")
Batch = TypeVar("Batch")
State = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """What a loader needs for its place to be saved."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state_dict: State, /) -> None: ...


class prefetch(Generic[Batch]):
    """A loader's batches on the device, copied ahead while the device is at work.

    On CUDA the copies of the next `depth` batches run on a stream of their own, ordered with the one
    that uses them in both directions: the user's waits for a batch's copy to arrive, and a batch's
    memory is not written again before the work that was queued on it is done. Both waits are the
    device's. The host waits for nothing, given pinned memory (`make_loader(..., device=device)`). The
    user's stream is the one that is current when the batch is asked for. On a CPU the batches are
    handed through.

    Each iteration iterates the loader once. An error in the loader comes up in its place, after the
    batches before it.

    `state_dict` and `load_state_dict` stand in the place of the loader's. The state is the loader's
    after the last batch handed out, whatever has been fetched ahead.

    Args:
        loader: Any iterable of batches. A batch is a pytree of tensors (tuples, lists, dicts, named
            tuples); leaves that are not tensors are handed through.
        device: A CUDA device or the CPU.
        depth: How many batches are copied ahead of the one that is handed out.

    Raises:
        TypeError: `depth` is not an integer. From `state_dict` and `load_state_dict`: the loader has
            no such methods. From `len`: the loader has no length.
        ValueError: `depth` is below 1; the device is neither CUDA's nor the CPU, or there is no CUDA.

    >>> from torch_bridge.data import make_loader
    >>> feed = prefetch(make_loader(range(6), 2, training=False, workers=0), "cpu")
    >>> for batch in feed:
    ...     break
    >>> feed.load_state_dict(feed.state_dict())
    >>> [batch.tolist() for batch in feed]
    [[2, 3], [4, 5]]
    """

    def __init__(self, loader: Iterable[Batch], device: torch.device | str, depth: int = 2) -> None:
        depth = checks.at_least("depth", depth, 1)
        kind = torch.device(device).type
        if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
            raise ValueError(f"device = {device!r} must be the CPU, or CUDA where there is one")
        self.loader = loader
        self._stateful = loader if isinstance(loader, Stateful) else None
        self._stream = Stream(device) if kind == "cuda" else None
        self._depth = depth if kind == "cuda" else 0
        self._state: State | None = None

    def __len__(self) -> int:
        return len(cast(Sized, self.loader))

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        self._state = self._loader_state()
        for batch, arrived, state in _run_ahead(self._fetch(batches), self._depth):
            if arrived is not None:
                _receive(batch, arrived)
            self._state = state
            yield batch

    def state_dict(self) -> State:
        """The loader's state after the last batch handed out."""
        return self._with_state().state_dict() if self._state is None else self._state

    def load_state_dict(self, state_dict: State) -> None:
        """Make the next iteration go on where the state was saved."""
        self._with_state().load_state_dict(state_dict)
        self._state = None

    def _with_state(self) -> Stateful:
        if self._stateful is None:
            raise TypeError(f"loader = {self.loader!r} has no state_dict and load_state_dict")
        return self._stateful

    def _loader_state(self) -> State | None:
        return None if self._stateful is None else self._stateful.state_dict()

    def _fetch(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Event | None, State | None]]:
        """Each batch, under way to the device, with its arrival and the loader's state after it."""
        for batch in batches:
            if self._stream is None:
                yield batch, None, self._loader_state()
            else:
                yield *_send(batch, self._stream), self._loader_state()


def _send(batch: Batch, stream: Stream) -> tuple[Batch, Event]:
    arrival = Event()
    with torch.cuda.stream(stream):
        copy = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(stream.device, non_blocking=True), batch)
        arrival.record(stream)
    return copy, arrival


def _receive(batch: Any, arrival: Event) -> None:
    user = torch.cuda.current_stream(arrival.device)
    user.wait_event(arrival)
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            # It was allocated for the copying stream, which would write to it again once it is freed.
            leaf.record_stream(user)


def _run_ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """The items, each when `depth` more have been drawn; an error after the items drawn before it."""
    drawn: deque[Item] = deque()
    try:
        for item in items:
            drawn.append(item)
            if len(drawn) > depth:
                yield drawn.popleft()
    except Exception:
        while drawn:
            yield drawn.popleft()
        raise
    while drawn:
        yield drawn.popleft()
