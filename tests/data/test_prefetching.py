"""`prefetch`: the same batches, and errors after the same batches, for any kind of batch."""

import gc
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.data.loaders import WORKERS, Counted, ahead, depths, epoch, saved_after
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils import _pytree as pytree

from torch_bridge import make_loader, prefetch
from torch_bridge.data.prefetching import _dense_parts

pytestmark = WORKERS


@given(st.integers(0, 8), st.integers(0, 4))
def test_state_is_of_last_batch_handed_out(length: int, depth: int) -> None:
    loader = Counted(length)
    assert prefetch(loader, "cpu")._depth == 0  # nothing is copied, so nothing is fetched ahead
    feed = ahead(loader, depth)
    for index, batch in enumerate(feed):
        assert batch.item() == index
        assert feed.state_dict() == {"count": index + 1}
        assert loader.count == min(index + 1 + depth, length)
    assert feed.state_dict() == {"count": length}


@given(st.sampled_from([OSError, KeyboardInterrupt]), st.integers(0, 5), st.integers(0, 4))
def test_error_loses_no_batch(error: type[BaseException], fails_at: int, depth: int) -> None:
    """An error follows the batches before it; an interrupt comes at once, with its place saved."""
    feed, seen = ahead(Counted(6, fails_at, error), depth), []
    with pytest.raises(error):
        seen.extend(batch.item() for batch in feed)
    assert seen == list(range(fails_at if error is OSError else max(fails_at - depth, 0)))
    assert feed.state_dict() == {"count": len(seen)}


def test_error_leaves_no_reference_cycle() -> None:
    loader = Counted(6, 3)
    alive = weakref.ref(loader)
    gc.disable()
    try:
        with pytest.raises(OSError, match="3"):
            epoch(prefetch(loader, "cpu"))
        del loader
        assert alive() is None
    finally:
        gc.enable()


@given(depths, st.lists(st.booleans(), max_size=12))
def test_stateless_loader_allows_two_iterations(depth: int, turns: list[bool]) -> None:
    feed = ahead([torch.tensor(index) for index in range(4)], depth)
    assert len(feed) == 4
    iterations, counts = (iter(feed), iter(feed)), [0, 0]
    for turn in turns:
        batch = next(iterations[turn], None)
        assert batch == (counts[turn] if counts[turn] < 4 else None)
        counts[turn] += 1


def test_cpu_batches_are_passed_through() -> None:
    point = namedtuple("point", "x y")
    batches = [{"a": point(torch.ones(2), "name"), "b": [torch.zeros(1), None]}]
    assert all(a is b for a, b in zip(prefetch(batches, "cpu"), batches, strict=True))


def _storages(tree: Any) -> set[int]:
    """Return the memory addresses of all tensors in a tree, for a sparse one those of its parts."""
    addresses: set[int] = set()
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            addresses.add(leaf.untyped_storage().data_ptr())
        elif isinstance(leaf, Tensor):
            addresses |= _storages(leaf.__reduce_ex__(2))
    return addresses


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


@pytest.mark.parametrize("layout", [torch.strided, *LAYOUTS])
@pytest.mark.filterwarnings("ignore:Sparse [A-Z]+ tensor support is in beta state:UserWarning")
def test_dense_parts_cover_tensor_memory(layout: torch.layout) -> None:
    """Unknown memory could be reused before the work on it is done."""
    dense = torch.eye(4)
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    tensor = dense if layout == torch.strided else dense.to_sparse(layout=layout, **blocks)
    parts = _dense_parts(tensor)
    assert all(part.layout == torch.strided for part in parts)
    assert {part.untyped_storage().data_ptr() for part in parts} == _storages(tensor)
    assert len(parts) == {torch.strided: 1, torch.sparse_coo: 2}.get(layout, 3)


def test_dense_parts_cover_other_leaves() -> None:
    unsorted = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    for packed in (unsorted, pack_sequence([torch.ones(3), torch.ones(2)])):
        # batch_sizes stays on the CPU.
        moved = packed.data, packed.sorted_indices, packed.unsorted_indices
        assert _storages(_dense_parts(packed)) == _storages(moved)
    for leaf in ("text", 3, 0.5, None, b"bytes", range(3)):
        assert _dense_parts(leaf) == []


# On a GPU: copies and work wait for each other, and the host waits for neither.

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


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
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
    feed, user, sums = prefetch(loader, "cuda", depth=depth), torch.cuda.Stream(), []
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


@pytest.mark.gpu
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


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_copy_error_follows_earlier_batches(place: int, depth: int) -> None:
    batches: list[Any] = [torch.tensor(index) for index in range(6)]
    batches[place] = [batches[place], torch.ones(2).to_mkldnn()]
    seen: list[int] = []
    with pytest.raises(TypeError, match=r"layout torch\._mkldnn"):
        seen.extend(batch.item() for batch in prefetch(batches, "cuda", depth=depth))
    assert seen == list(range(place))


@pytest.mark.gpu
@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_resume_with_pinned_batches_and_workers(default: str) -> None:
    """Torch's default device changes nothing."""
    arguments = {"dataset": range(20), "batch_size": 3, "device": "cuda", "num_workers": 2}
    uninterrupted = make_loader(**arguments)
    epochs = [epoch(uninterrupted) for _ in range(3)]
    for count in (0, 2, 6, 7):
        with torch.device(default):
            resumed = prefetch(make_loader(**arguments), "cuda", depth=3)
            resumed.load_state_dict(
                saved_after(prefetch(make_loader(**arguments), "cuda", depth=2), count)
            )
            index, start = divmod(count, len(uninterrupted))
            assert epoch(resumed) == epochs[index][start:]
            assert epoch(resumed) == epochs[index + 1]
