"""`prefetch` on a CPU: the same batches, and errors after the same batches, for any kind of batch."""

import gc
import weakref
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from support.data.batches_by_rank import Counted, ahead, depths, epoch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from torch_bridge import prefetch
from torch_bridge.data.prefetching import _dense_parts


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
    """An error follows the batches before it; an interrupt comes at once, and the state has its place."""
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
    """Return the memory addresses of all tensors in a tree; sparse ones are taken apart as pickle does."""
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
