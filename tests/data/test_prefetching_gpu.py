"""`prefetch` on a GPU: copies and work wait for each other, and the host waits for neither."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.data.batches_by_rank import WORKERS, epoch, saved_after
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torch_bridge import make_loader, prefetch

pytestmark = [
    pytest.mark.gpu,
    *WORKERS,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]

SIZE, COUNT = 1 << 18, 12


def sparse(values: Tensor) -> Tensor:
    """Return a sparse tensor with every third element filled."""
    places = torch.arange(len(values))[None] * 3
    return torch.sparse_coo_tensor(places, values, (3 * len(values),))


def packed(values: Tensor) -> PackedSequence:
    return pack_sequence([*values.view(2, -1)], enforce_sorted=False)


# For each kind of batch, functions that build it from numbers and read them back.
KINDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dense": (lambda values: values, lambda batch: batch),
    "subclass": (lambda values: values.as_subclass(torch.nn.Buffer), lambda batch: batch),
    "sparse": (sparse, lambda batch: torch.stack([batch._values(), batch._indices()[0]])),
    "packed": (packed, lambda batch: batch.data),
    "mixed": (
        lambda values: {"a": [values, "name"], "b": (None, values + 1)},
        lambda b: b["a"][0] + b["b"][1],
    ),
}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("late", ["copies", "work"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_work_wait_for_each_other(kind: str, late: str, depth: int) -> None:
    """One of the streams is delayed; the work on each batch still finds that batch and no other."""
    make, numbers = KINDS[kind]
    loader = make_loader(
        torch.arange(COUNT * SIZE).view(COUNT, SIZE),
        1,
        training=False,
        device="cuda",
        num_workers=0,
        collate_fn=lambda samples: make(samples[0]),
    )
    expected = [numbers(batch).sum().item() for batch in loader]
    feed, user, sums = prefetch(loader, "cuda", depth), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(user):
            for batch in feed:
                assert numbers(batch).is_cuda
                with torch.cuda.stream(feed._stream if late == "copies" else user):
                    torch.cuda._sleep(20_000_000)
                sums.append(numbers(batch).sum())
                del batch
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The stream that is not delayed ends first.
    for stream in (feed._stream, user) if late == "work" else (user, feed._stream):
        stream.synchronize()
    assert [total.item() for total in sums] == expected


def test_queued_writes_to_device_batches_finish_first() -> None:
    """Work that a loader has queued on another stream is done before its batch is used."""
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(1, COUNT + 1):
            torch.cuda._sleep(20_000_000)
            yield torch.full((SIZE,), number, device="cuda"), torch.tensor(number).pin_memory()

    # With depth 1, a batch is made on one stream and used on the other.
    feed, differences = iter(prefetch(loader(), "cuda", depth=1)), []
    for index in range(COUNT):
        with torch.cuda.stream(streams[index % 2]):
            made, copied = next(feed)
            differences.append((made - copied).abs().max())
    for first in (0, 1):
        streams[first].synchronize()
        assert [difference.item() for difference in differences[first::2]] == [0] * (COUNT // 2)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_copy_error_follows_earlier_batches(place: int, depth: int) -> None:
    batches: list[Any] = [torch.tensor(index) for index in range(6)]
    batches[place] = [batches[place], torch.ones(2).to_mkldnn()]
    seen: list[int] = []
    with pytest.raises(TypeError, match=r"layout torch\._mkldnn"):
        seen.extend(batch.item() for batch in prefetch(batches, "cuda", depth))
    assert seen == list(range(place))


@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_resume_with_pinned_batches_and_workers(default: str) -> None:
    """Torch's default device changes nothing."""
    arguments = {"dataset": range(20), "batch_size": 3, "device": "cuda", "num_workers": 2}
    uninterrupted = make_loader(**arguments)
    epochs = [epoch(uninterrupted) for _ in range(3)]
    for count in (0, 2, 6, 7):
        with torch.device(default):
            resumed = prefetch(make_loader(**arguments), "cuda", 3)
            resumed.load_state_dict(saved_after(prefetch(make_loader(**arguments), "cuda", 2), count))
            index, start = divmod(count, len(uninterrupted))
            assert epoch(resumed) == epochs[index][start:]
            assert epoch(resumed) == epochs[index + 1]
