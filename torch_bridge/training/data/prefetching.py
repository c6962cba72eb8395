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
    batch, the current stream waits for its copy. The memory of the batch is reused only after the
    work that this stream has queued on it. If the loader puts batches in pinned memory, as
    `make_loader(..., device=device)` does, the host never waits for the device. On a CPU the
    batches are returned unchanged.

    Each iteration iterates over the loader once. If the loader raises an error, you first get the
    batches before it. The state is that of the loader after the last batch that you got, even
    though more were fetched ahead. If the loader has a state, it has one position: a new iteration,
    or loading a state, ends the previous iteration.

    Args:
        loader: Any iterable of batches. A batch is a pytree (tuples, lists, dicts, named tuples) of
            dense tensors; other leaves are passed through. The loader must not write to a batch
            that it has returned.
        device: A CUDA device or the CPU.
        depth: Number of batches copied ahead.

    Raises:
        TypeError: `depth` is not an integer; from `len`: the loader has no length.
        AttributeError: From `state_dict` and `load_state_dict`: the loader has no such method.
        ValueError: `depth` is below 1; the device is neither a CUDA device nor the CPU, or CUDA is
            not available.
        RuntimeError: torch does not know the device. During an iteration: a newer iteration, or a
            loaded state, has ended it.

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
        self._iteration: object = None  # the iteration that the state belongs to

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        this_iteration = object()
        self._iteration = this_iteration
        batches = iter(self._loader)
        self._state = self._loader_state()
        for fetched in _run_ahead(self._fetch(batches), self._depth):
            if fetched.loader_state is not None and self._iteration is not this_iteration:
                raise RuntimeError(
                    "this iteration was ended: another has begun, or a state was loaded"
                )
            if fetched.arrival is not None:
                _use_on_current_stream(fetched.batch, fetched.arrival)
            self._state = fetched.loader_state
            yield fetched.batch
        if self._iteration is this_iteration:
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
        self._iteration = None

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
#     the copying stream:  copy 1 · record 1 · copy 2 · record 2 · …
#     the user's stream:   wait for record 1 · work on 1 · wait for record 2 · work on 2 · …
# `wait_event` makes the user's stream wait for the copy. In the other direction, torch's allocator
# could give batch 1's memory to copy 3, or back to the driver, as soon as Python drops the batch,
# though work on it may still be queued. `record_stream` delays that until the work is done.
def _begin_copy(batch: Batch, stream: Stream) -> tuple[Batch, Event]:
    leaves = pytree.tree_leaves(batch)
    if any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves):
        # The batch is on a device already, and queued work there may still write to it.
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    arrival = Event()
    with torch.cuda.stream(stream):
        copied = pytree.tree_map_only(
            Tensor, lambda tensor: tensor.to(stream.device, non_blocking=True), batch
        )
        arrival.record(stream)
    return cast("Batch", copied), arrival


def _use_on_current_stream(batch: Any, arrival: Event) -> None:
    user = torch.cuda.current_stream(arrival.device)
    user.wait_event(arrival)
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            leaf.record_stream(user)


def _run_ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield each item after drawing `depth` more. An error is raised after the items before it."""
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
