"""`prefetch`: copy a loader's batches to the device ahead of the training loop."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.cuda import Event, Stream
from torch.utils import _pytree as pytree

from plateau_jax.arguments import checks

Item = TypeVar("Item")
Batch = TypeVar("Batch")
State = dict[str, Any]


class _FetchedBatch(NamedTuple, Generic[Item]):
    """A batch, with the event of its arrival on the device, and the loader's state after it."""

    batch: Item
    arrival: Event | None
    loader_state: State | None


class prefetch(Generic[Batch]):
    """A loader's batches on the device, copied while the device still works on earlier ones.

    On CUDA the copies of the next `depth` batches run on a separate stream. When you request a
    batch, the current stream waits for its copy; the copies that begin then wait for the work that
    this stream has queued, which may still use the memory of an earlier batch. If the loader puts
    batches in pinned memory, as `make_loader(..., device=device)` does, the host never waits for
    the device. On a CPU the batches are returned unchanged.

    Each iteration iterates over the loader once. The state is that of the loader after the last
    batch that you got, even though more were fetched ahead, and even if fetching one of them raised
    an error.

    Args:
        loader: Any iterable of batches. A batch is a pytree (tuples, lists, dicts, named tuples) of
            tensors; other leaves are passed through. The loader must not write to a batch that it
            has returned.
        device: A CUDA device or the CPU.
        depth: Number of batches copied ahead.

    Raises:
        TypeError: `depth` is not an integer; from `len`: the loader has no length.
        AttributeError: From `state_dict` and `load_state_dict`: the loader has no such method.
        ValueError: `depth` is below 1; the device is neither a CUDA device nor the CPU, or CUDA is
            not available.
        RuntimeError: torch does not know the device. During an iteration over a loader from
            `make_loader`: a newer iteration, or a loaded state, has ended it.

    >>> from torch_bridge import make_loader, prefetch
    >>> feed = prefetch(make_loader(range(6), 2, training=False, num_workers=0), "cpu")
    >>> for batch in feed:
    ...     break
    >>> feed.load_state_dict(feed.state_dict())
    >>> [batch.tolist() for batch in feed]
    [[2, 3], [4, 5]]
    """

    def __init__(
        self, loader: Iterable[Batch], device: torch.device | str, *, depth: int = 2
    ) -> None:
        depth = checks.at_least("depth", depth, 1)
        device_type = torch.device(device).type
        is_cuda = device_type == "cuda" and torch.cuda.is_available()
        if device_type != "cpu" and not is_cuda:
            raise ValueError(
                checks.must("device", device, "be the CPU or an available CUDA device")
            )
        self._loader: Any = loader
        self._stream = Stream(device) if is_cuda else None
        self._depth = depth if is_cuda else 0
        self._state: State | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        self._state = self._loader_state()
        for fetched in _run_ahead(self._fetch(batches), self._depth):
            if fetched.arrival is not None:
                torch.cuda.current_stream(fetched.arrival.device).wait_event(fetched.arrival)
            self._state = fetched.loader_state
            yield fetched.batch
        self._state = self._loader_state()  # a loader may change its state when it ends

    def state_dict(self) -> State:
        """Return the loader's state after the last batch that the iteration returned."""
        if self._state is None:
            return self._loader.state_dict()
        return self._state

    def load_state_dict(self, state_dict: State) -> None:
        """Begin the next iteration at the position in a state.

        Args:
            state_dict: A state that `state_dict` returned.
        """
        self._loader.load_state_dict(state_dict)
        self._state = None

    def _loader_state(self) -> State | None:
        if not hasattr(self._loader, "state_dict"):
            return None
        return self._loader.state_dict()

    def _fetch(self, batches: Iterator[Batch]) -> Iterator[_FetchedBatch[Batch]]:
        """Yield each batch on the device, or on its way there."""
        # The state travels with its batch: by the time the batch is handed out, the loader is
        # `depth` ahead.
        for batch in batches:
            if self._stream is None:
                yield _FetchedBatch(batch, None, self._loader_state())
            else:
                copied, arrival = _begin_copy(batch, self._stream)
                yield _FetchedBatch(copied, arrival, self._loader_state())


# Two streams share a batch, and the host waits for neither:
#     the copying stream:  wait · copy 1 · record 1 · wait · copy 2 · record 2 · …
#     the user's stream:   wait for record 1 · work on 1 · wait for record 2 · work on 2 · …
# Before each copy, the copying stream waits for the work that the user has queued by then. It may
# still write to the batch, if the loader builds batches on the device, or read from the memory of
# an earlier batch, which torch's allocator gives to this copy as soon as Python drops that batch.
def _begin_copy(batch: Batch, stream: Stream) -> tuple[Batch, Event]:
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    arrival = Event()
    with torch.cuda.stream(stream):
        copied = pytree.tree_map_only(
            Tensor, lambda tensor: tensor.to(stream.device, non_blocking=True), batch
        )
        arrival.record(stream)
    return cast("Batch", copied), arrival


def _run_ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield each item after drawing `depth` more."""
    drawn: deque[Item] = deque()
    for item in items:
        drawn.append(item)
        if len(drawn) > depth:
            yield drawn.popleft()
    yield from drawn
