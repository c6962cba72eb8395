"""`prefetch`: the same batches, and errors after the same batches, for any kind of batch."""

from collections import namedtuple
from itertools import chain, islice, repeat

import pytest
import torch
from hypothesis import given, strategies as st
from support.data.loaders import WORKERS, ahead, epoch
from support.training.steps import through_file

from torch_bridge import make_loader, prefetch

pytestmark = WORKERS

depths = st.integers(0, 3)


class Counted:
    """A loader that counts the batches it hands out, and fails at one of them."""

    def __init__(self, length, fails_at=None, error=OSError):
        self.length = length
        self.fails_at = fails_at
        self.error = error
        self.count = 0

    def __iter__(self):
        for index in range(self.length):
            if index == self.fails_at:
                raise self.error(index)
            self.count = index + 1
            yield torch.tensor(index)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


@given(st.integers(0, 8), st.integers(0, 4))
def test_state_is_of_last_batch_handed_out(length, depth):
    loader = Counted(length)
    feed = ahead(loader, depth)
    for index, batch in enumerate(feed):
        assert batch.item() == index
        assert feed.state_dict() == {"count": index + 1}
        assert loader.count == min(index + 1 + depth, length)
    assert feed.state_dict() == {"count": length}


def test_nothing_is_fetched_ahead_on_a_cpu():
    loader = Counted(3)
    next(iter(prefetch(loader, "cpu")))
    assert loader.count == 1


@given(st.sampled_from([OSError, KeyboardInterrupt]), st.integers(0, 5), st.integers(0, 4))
def test_error_loses_no_batch(error, fails_at, depth):
    """An error follows the batches before it; an interrupt comes at once, with its place saved."""
    feed = ahead(Counted(6, fails_at, error), depth)
    numbers = []
    with pytest.raises(error):
        numbers.extend(batch.item() for batch in feed)
    if error is OSError:
        expected = fails_at
    else:
        expected = max(fails_at - depth, 0)
    assert numbers == list(range(expected))
    assert feed.state_dict() == {"count": expected}


@given(depths, st.lists(st.booleans(), max_size=12))
def test_stateless_loader_allows_two_iterations(depth, turns):
    feed = ahead([torch.tensor(index) for index in range(4)], depth)
    assert len(feed) == 4
    iterations = [iter(feed), iter(feed)]
    expected = [iter(range(4)), iter(range(4))]
    for turn in turns:
        assert next(iterations[turn], None) == next(expected[turn], None)


def test_cpu_batches_are_passed_through():
    point = namedtuple("point", "x y")
    batches = [{"a": point(torch.ones(2), "name"), "b": [torch.zeros(1), None]}]
    for passed, batch in zip(prefetch(batches, "cpu"), batches, strict=True):
        assert passed is batch


# On a GPU: copies and work wait for each other, and the host waits for neither.

SIZE = 1 << 18
COUNT = 12


class Dense:
    """A kind of batch: it is built from numbers, and they can be read from it."""

    def build(self, values):
        return values

    def numbers(self, batch):
        return batch


class Subclass(Dense):
    def build(self, values):
        return values.as_subclass(torch.nn.Buffer)


class Nested(Dense):
    def build(self, values):
        return {"a": [values, "name"], "b": (None, values + 1)}

    def numbers(self, batch):
        return batch["a"][0] + batch["b"][1]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("late", ["copies", "work"])
@pytest.mark.parametrize("kind", [Dense(), Subclass(), Nested()])
def test_copies_and_work_wait_for_each_other(kind, late, depth):
    """One of the streams is delayed; the work on each batch still finds that batch and no other."""

    def collate(samples):
        return kind.build(samples[0])

    loader = make_loader(
        torch.arange(COUNT * SIZE).view(COUNT, SIZE),
        1,
        training=False,
        device="cuda",
        num_workers=0,
        collate_fn=collate,
    )
    expected = [kind.numbers(batch).sum().item() for batch in loader]
    feed = prefetch(loader, "cuda", depth=depth)
    copies = feed._stream
    assert copies is not None
    work = torch.cuda.Stream()
    if late == "copies":
        delayed = copies
        punctual = work
    else:
        delayed = work
        punctual = copies
    sums = []
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(work):
            for batch in feed:
                assert kind.numbers(batch).is_cuda
                with torch.cuda.stream(delayed):
                    torch.cuda._sleep(20_000_000)
                sums.append(kind.numbers(batch).sum())
                del batch
    finally:
        torch.cuda.set_sync_debug_mode("default")
    punctual.synchronize()  # it ends first
    delayed.synchronize()
    assert [total.item() for total in sums] == expected


@pytest.mark.gpu
def test_queued_writes_to_device_batches_finish_first():
    """Work that a loader has queued on another stream is done before its batch is used."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def loader():
        for number in range(1, COUNT + 1):
            torch.cuda._sleep(20_000_000)
            yield torch.full((SIZE,), number, device="cuda"), torch.tensor(number).pin_memory()

    # With depth 1, a batch is built on one stream and used on the other.
    feed = iter(prefetch(loader(), "cuda", depth=1))
    differences = []
    for index in range(COUNT):
        with torch.cuda.stream(streams[index % 2]):
            filled, copied = next(feed)
            differences.append((filled - copied).abs().max())
    for first, stream in enumerate(streams):
        stream.synchronize()
        assert [difference.item() for difference in differences[first::2]] == [0] * (COUNT // 2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_copy_error_follows_earlier_batches(place, depth):
    batches = [torch.tensor(index) for index in range(6)]
    batches[place] = [batches[place], torch.eye(2).to_sparse()]
    numbers = []
    with pytest.raises(NotImplementedError, match="record_stream"):
        numbers.extend(batch.item() for batch in prefetch(batches, "cuda", depth=depth))
    assert numbers == list(range(place))


@pytest.mark.gpu
@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_resume_with_pinned_batches_and_workers(default):
    """Torch's default device changes nothing."""
    arguments = {"dataset": range(20), "batch_size": 3, "device": "cuda", "num_workers": 2}
    uninterrupted = make_loader(**arguments)
    epochs = [epoch(uninterrupted) for _ in range(3)]
    for count in (0, 2, 6, 7):
        with torch.device(default):
            resumed = prefetch(make_loader(**arguments), "cuda", depth=3)
            interrupted = prefetch(make_loader(**arguments), "cuda", depth=2)
            batches = chain.from_iterable(repeat(interrupted))
            assert len(list(islice(batches, count))) == count
            resumed.load_state_dict(through_file(interrupted.state_dict()))
            index, start = divmod(count, len(uninterrupted))
            assert epoch(resumed) == epochs[index][start:]
            assert epoch(resumed) == epochs[index + 1]


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 3])
def test_memory_waits_for_the_work_of_every_stream(depth):
    """Batches are requested, used and dropped on two streams in turn, which do not wait."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    batches = [torch.full((SIZE,), float(index)).pin_memory() for index in range(COUNT)]
    feed = iter(prefetch(batches, "cuda", depth=depth))
    sums = []
    for index in range(COUNT):
        with torch.cuda.stream(streams[index % 2]):
            batch = next(feed)
            torch.cuda._sleep(20_000_000)
            sums.append(batch.sum())
            del batch
    torch.cuda.synchronize()
    assert [total.item() for total in sums] == [index * SIZE for index in range(COUNT)]
