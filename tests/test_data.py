import gc
import io
import random
import subprocess
import sys
import weakref
from collections import namedtuple
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from torch_bridge import make_loader, prefetch
from torch_bridge.data import loader as data

pytestmark = [
    # Two workers are asked for on a machine that may have one core.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Workers are forked beside whatever threads other tests' libraries have left; no worker uses those.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

EPOCHS = 3
seeds = st.integers(0, 2**32 - 1)
few = partial(settings, deadline=None)


@st.composite
def arguments(draw):
    """What make_loader may be given, with at least one batch an epoch."""
    samples = draw(st.integers(1, 30))
    given = {"training": draw(st.booleans()), "seed": draw(seeds)}
    for name in draw(st.sets(st.sampled_from(["shuffle", "drop_last"]))):
        given[name] = draw(st.booleans())
    most = samples if given.get("drop_last", given["training"]) else samples + 3
    return {"dataset": range(samples), "batch_size": draw(st.integers(1, most)), **given}


def build(arguments, depth=0, **more):
    """A loader, prefetched when there is a depth: on a CPU, but fetching ahead as on CUDA."""
    loader = make_loader(**arguments, **more)
    if not depth:
        return loader
    feed = prefetch(loader, "cpu", depth)
    feed._depth = depth
    return feed


def epoch(feed):
    return [batch.tolist() for batch in feed]


def saved_after(feed, count, see_end=False):
    """The state after `count` batches, asking for no batch more unless the epoch's end is to be seen."""
    batches = iter(())
    for _ in range(count):
        try:
            next(batches)
        except StopIteration:
            batches = iter(feed)
            next(batches)
    if see_end:
        assert next(batches, None) is None
    file = io.BytesIO()
    torch.save(feed.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_resume(arguments, first, second, depths, see_end=False, **more):
    """Interrupted after `first` batches and again `second` later, against a run without interruption."""
    whole = build(arguments, **more)
    epochs = [epoch(whole) for _ in range(EPOCHS)]
    length = len(whole)
    state, done = None, 0
    for count, depth in zip((first, second), depths, strict=True):
        feed = build(arguments, depth, **more)
        if state is not None:
            feed.load_state_dict(state)
        done += count
        state = saved_after(feed, count, see_end and done % length == 0 and count > 0)
    resumed = build(arguments, depths[-1], **more)
    resumed.load_state_dict(state)
    index, start = divmod(done, length)
    expected = [epochs[index][start:], *epochs[index + 1 :]]
    assert [epoch(resumed) for _ in expected] == expected


@st.composite
def interruptions(draw):
    """Arguments and two numbers of batches, often whole epochs, that leave something of the last epoch."""
    given = draw(arguments())
    length = len(make_loader(**given, workers=0))
    cuts = st.integers(0, EPOCHS - 1).map(lambda e: e * length) | st.integers(0, EPOCHS * length - 1)
    first, last = sorted([draw(cuts), draw(cuts)])
    return given, first, last - first


depths = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(interruptions(), depths, st.booleans())
@example(({"dataset": range(10), "batch_size": 3}, 3, 0), (0, 0), False)
@example(({"dataset": range(10), "batch_size": 3}, 3, 3), (2, 2), False)
@example(({"dataset": range(10), "batch_size": 3}, 3, 3), (0, 0), True)
@example(({"dataset": range(10), "batch_size": 3}, 0, 0), (0, 3), False)
@few(max_examples=300)
def test_a_resumed_run_goes_on_with_the_first_batch_not_handed_out(cuts, depths, see_end):
    check_resume(*cuts, depths, see_end, workers=0)


@given(interruptions(), depths, st.booleans(), st.booleans())
@example(({"dataset": range(7), "batch_size": 2}, 3, 0), (0, 0), False, True)
@example(({"dataset": range(7), "batch_size": 2}, 3, 3), (2, 1), True, False)
@few(max_examples=4)
def test_the_same_with_workers(cuts, depths, see_end, persistent):
    check_resume(*cuts, depths, see_end, workers=2, persistent_workers=persistent)


def test_the_same_with_spawned_workers():
    arguments = {"dataset": range(8), "batch_size": 2}
    check_resume(arguments, 1, 2, (0, 1), workers=1, multiprocessing_context="spawn")


def test_the_same_with_a_sampler_that_has_a_state():
    def build_one():
        sampler = RandomSampler(range(9), generator=torch.Generator().manual_seed(5))
        return make_loader(range(9), 2, sampler=sampler, workers=0)

    whole = build_one()
    epochs = [epoch(whole) for _ in range(3)]
    for count in range(2 * len(whole)):
        resumed = build_one()
        resumed.load_state_dict(saved_after(build_one(), count))
        index, start = divmod(count, len(whole))
        assert epoch(resumed) == epochs[index][start:]
        assert epoch(resumed) == epochs[index + 1]


@given(arguments(), st.integers(0, 10), st.integers(0, 3))
@few(max_examples=100)
def test_a_state_may_be_taken_back_to(arguments, count, depth):
    """Loading into the loader that saved, in the middle of another epoch, changes nothing of what follows."""
    feed = build(arguments, depth, workers=0)
    state = saved_after(feed, count)
    after = [epoch(feed) for _ in range(2)]
    resumed = build(arguments, depth, workers=0)
    resumed.load_state_dict(state)
    rest = [epoch(resumed) for _ in range(2)]
    for _ in zip(range(2), feed, strict=False):
        pass
    feed.load_state_dict(state)
    resumed.load_state_dict(saved_after(feed, 0))
    assert [epoch(feed) for _ in range(2)] == rest
    assert [epoch(resumed) for _ in range(2)] == rest
    assert rest[1] == after[0] if count % len(feed) else rest == after


@given(arguments())
@few(max_examples=200)
def test_every_epoch_is_the_dataset(arguments):
    """In its order or in another, whole or but for the samples that fill no batch."""
    size, samples = arguments["batch_size"], len(arguments["dataset"])
    shuffle = arguments.get("shuffle", arguments["training"])
    drop_last = arguments.get("drop_last", arguments["training"])
    loader = make_loader(**arguments, workers=0)
    for _ in range(EPOCHS):
        batches = epoch(loader)
        seen = [index for batch in batches for index in batch]
        rest = samples % size
        assert [len(b) for b in batches] == [size] * (samples // size) + [rest] * (rest > 0 and not drop_last)
        assert len(batches) == len(loader)
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(samples))
        assert shuffle or seen == list(range(len(seen)))


@given(seeds, seeds, st.integers(0, 2**32))
@few(max_examples=50)
def test_orders_are_the_seeds_alone(seed, other, around):
    def orders(seed):
        loader = make_loader(range(1000), 100, seed=seed, workers=0)
        return [epoch(loader) for _ in range(EPOCHS)]

    torch.manual_seed(around)
    first = orders(seed)
    torch.manual_seed(around + 1)
    assert orders(seed) == first
    # Two of 1000! orders are never the same by chance.
    assert len({str(order) for order in first}) == EPOCHS
    assert seed == other or first[0] != orders(other)[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 2])
def test_the_global_random_states_are_left_alone(workers, depth):
    def states():
        of_numpy = repr(np.random.get_state())  # noqa: NPY002  the global one is what this is about
        return torch.get_rng_state().tolist(), of_numpy, random.getstate()

    before = states()
    feed = build({"dataset": range(9), "batch_size": 2}, depth, workers=workers)
    epoch(feed)
    next(iter(feed))
    state = feed.state_dict()
    epoch(feed)
    feed.load_state_dict(state)
    epoch(feed)
    assert states() == before


@given(arguments(), st.integers(1, 3), st.lists(st.integers(1, 6), max_size=3))
@few(max_examples=100)
def test_prefetching_changes_no_batch(arguments, depth, breaks):
    """Loops that break off included: each starts the epoch that it would start without."""
    plain, ahead = build(arguments, workers=0), build(arguments, depth, workers=0)
    assert len(ahead) == len(plain)
    for count in [*breaks, None]:
        assert epoch(islice(ahead, count)) == epoch(islice(plain, count))


class Counted:
    """A loader that counts what it has handed out, and fails at one batch."""

    def __init__(self, length, fails_at=None, error=OSError):
        self.length, self.fails_at, self.error, self.count = length, fails_at, error, 0

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
def test_fetching_ahead_is_by_depth_and_the_state_is_of_the_last_batch_handed_out(length, depth):
    loader = Counted(length)
    feed = prefetch(loader, "cpu")
    assert feed._depth == 0  # nothing is copied, so nothing is fetched before it is asked for
    feed._depth = depth
    for index, batch in enumerate(feed):
        assert batch.item() == index
        assert feed.state_dict() == {"count": index + 1}
        assert loader.count == min(index + 1 + depth, length)
    assert feed.state_dict() == {"count": length}


@given(st.integers(0, 5), st.integers(0, 4))
def test_an_error_of_the_loader_comes_in_its_place(fails_at, depth):
    feed = prefetch(Counted(6, fails_at), "cpu")
    feed._depth = depth
    seen = []
    with pytest.raises(OSError, match=f"^{fails_at}$"):
        seen.extend(batch.item() for batch in feed)
    assert seen == list(range(fails_at))
    assert feed.state_dict() == {"count": fails_at}


@given(st.integers(0, 5), st.integers(0, 4))
def test_an_interrupt_does_not_wait_and_loses_no_batch(fails_at, depth):
    feed = prefetch(Counted(6, fails_at, KeyboardInterrupt), "cpu")
    feed._depth = depth
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(batch.item() for batch in feed)
    assert seen == list(range(max(fails_at - depth, 0)))
    assert feed.state_dict() == {"count": len(seen)}


@given(st.integers(0, 3), st.integers(0, 3))
def test_after_an_error_a_resumed_loader_comes_to_the_same_sample(fails_at, depth):
    values = [0, 1, 2, 3]
    values[fails_at] = "no number"
    arguments = {
        "dataset": values,
        "batch_size": 1,
        "training": False,
        "workers": 0,
        "collate_fn": torch.tensor,
    }
    feed, resumed = build(arguments, depth), build(arguments, depth)
    seen = []
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        seen.extend(batch.item() for batch in feed)
    assert seen == list(range(fails_at))
    resumed.load_state_dict(feed.state_dict())
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        next(iter(resumed))


def test_an_error_leaves_nothing_behind():
    """No cycle of references keeps the loader, and what it holds, for the garbage collector."""
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


def test_batches_are_handed_through_on_a_cpu():
    point = namedtuple("point", "x y")
    batches = [{"a": point(torch.ones(2), "name"), "b": [torch.zeros(1), None]}]
    assert all(a is b for a, b in zip(prefetch(batches, "cpu"), batches, strict=True))


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (2, 1), (6, 5), (9, 8), (64, 8)])
def test_workers_are_one_fewer_than_the_cores_up_to_a_limit(monkeypatch, cores, workers):
    monkeypatch.setattr(data, "_usable_cores", lambda: cores)
    loader = make_loader(range(4), 2)
    assert loader.num_workers == workers
    assert loader.persistent_workers == (workers > 0)
    assert make_loader(range(4), 2, prefetch_factor=3).num_workers == max(workers, 1)


def test_the_cores_are_those_that_this_process_may_use():
    assert 1 <= data._usable_cores() <= torch.multiprocessing.cpu_count()


@pytest.mark.parametrize(
    ("device", "pinned"), [("cuda", True), ("cuda:1", True), ("cpu", False), (None, False)]
)
def test_only_batches_for_cuda_are_pinned(monkeypatch, device, pinned):
    assert not make_loader(range(4), 2, device="cpu").pin_memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert make_loader(range(4), 2, device=device).pin_memory == pinned
    assert not make_loader(range(4), 2, device=device, pin_memory=False).pin_memory


def test_other_overrides_reach_the_loader():
    dataset = TensorDataset(torch.arange(6))
    loader = make_loader(
        dataset, 2, workers=2, prefetch_factor=5, persistent_workers=False, timeout=9, drop_last=False
    )
    assert isinstance(loader, StatefulDataLoader)
    assert (loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (5, False, 9)
    assert (loader.batch_size, loader.drop_last) == (2, False)


def test_all_else_does_without_torchdata():
    code = """
import sys
sys.modules["torchdata"] = None
from torch_bridge import lambda_lr, prefetch
try:
    from torch_bridge import make_loader
except ImportError as error:
    assert "torchdata" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"dataset": Stream()}, TypeError, "dataset = .*Stream.* must have a length and samples by index"),
        ({"dataset": iter(range(4))}, TypeError, "dataset = .* must have a length"),
        ({"dataset": []}, ValueError, "0 samples give no batch"),
        ({"dataset": [], "training": False}, ValueError, "0 samples give no batch"),
        (
            {"dataset": range(3)},
            ValueError,
            "3 samples give no batch of batch_size = 4 with drop_last = True",
        ),
        ({"sampler": range(3)}, ValueError, "3 samples give no batch"),
        ({"batch_size": 0}, ValueError, "batch_size = 0 must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size = 2.0 must be an integer"),
        ({"batch_size": None}, TypeError, "batch_size = None must be an integer"),
        ({"workers": -1}, ValueError, "workers = -1 must be at least 0"),
        ({"workers": True}, TypeError, "workers = True must be an integer"),
        ({"seed": -1}, ValueError, "seed = -1 must be at least 0"),
        ({"seed": 2**32}, ValueError, "seed = 4294967296 must be below"),
        ({"seed": None}, TypeError, "seed = None must be an integer"),
        ({"workers": 0, "prefetch_factor": 2}, ValueError, "prefetch_factor = 2 needs workers > 0"),
        (
            {"workers": 0, "persistent_workers": True},
            ValueError,
            "persistent_workers = True needs workers > 0",
        ),
        ({"workers": 0, "multiprocessing_context": "spawn"}, ValueError, "'spawn' needs workers > 0"),
        ({"workers": 0, "timeout": 5}, ValueError, "timeout = 5 needs workers > 0"),
        ({"workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor = 0 must be at least 1"),
        ({"in_order": False}, ValueError, "in_order = False would lose the order"),
        ({"pin_memory": True}, ValueError, "pin_memory = True, but device = None"),
        ({"pin_memory": True, "device": "cpu"}, ValueError, "pin_memory = True, but device = 'cpu'"),
        ({"shuffle": True, "sampler": range(8)}, ValueError, "shuffle = True and a sampler"),
        ({"non_blocking": True}, TypeError, "non_blocking = True belongs to the copy.*prefetch"),
        ({"num_workers": 2}, TypeError, "num_workers = 2 is given as workers="),
        ({"generator": None}, TypeError, "generator = None is made from seed="),
        ({"batch_sampler": []}, TypeError, "batch_sampler = .* give sampler="),
        ({"pin_memory_device": "cuda"}, TypeError, "pin_memory_device = 'cuda' is deprecated"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, error, says):
    with pytest.raises(error, match=says):
        make_loader(**{"dataset": range(8), "batch_size": 4, **wrong})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"dataset": range(9)}, r"samples = 9 \(now 8\)"),
        ({"batch_size": 2}, r"batch_size = 2 \(now 4\)"),
        ({"seed": 1}, r"seed = 1 \(now 0\)"),
        ({"shuffle": False}, r"shuffle = False \(now True\)"),
        ({"training": False}, r"shuffle = False \(now True\), drop_last = False \(now True\)"),
        ({"workers": 1}, r"workers = 1 \(now 0\)"),
    ],
)
def test_the_state_of_another_loader_is_refused_and_changes_nothing(other, says):
    ours = {"dataset": range(8), "batch_size": 4, "workers": 0}
    state = make_loader(**{**ours, **other}).state_dict()
    loader, untouched = make_loader(**ours), make_loader(**ours)
    with pytest.raises(ValueError, match=f"saved by a loader with {says}"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of a loader"):
        prefetch(loader, "cpu").load_state_dict({"epoch": 1})
    assert epoch(loader) == epoch(untouched)


def test_prefetch_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="depth = 0 must be at least 1"):
        prefetch([], "cpu", 0)
    with pytest.raises(TypeError, match=r"depth = 1\.5 must be an integer"):
        prefetch([], "cpu", 1.5)
    with pytest.raises(ValueError, match="device = 'meta' must be the CPU, or CUDA"):
        prefetch([], "meta")
    feed = prefetch(iter([]), "cpu")
    with pytest.raises(TypeError, match="has no state_dict"):
        feed.state_dict()
    with pytest.raises(TypeError, match="has no state_dict"):
        feed.load_state_dict({})
    with pytest.raises(TypeError, match="has no len"):
        len(feed)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("late", ["copies", "work"])
def test_copies_and_work_wait_for_each_other(depth, late):
    """Either stream is held up; what the work sees of each batch is nothing but that batch."""
    size, count = 1 << 20, 12
    loader = make_loader(
        torch.arange(count * size).view(count, size), 1, training=False, device="cuda", workers=0
    )
    expected = [batch.sum().item() for batch in loader]
    feed, user, sums = prefetch(loader, "cuda", depth), torch.cuda.Stream(), []
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(user):
            for batch in feed:
                assert batch.is_cuda
                with torch.cuda.stream(feed._stream if late == "copies" else user):
                    torch.cuda._sleep(20_000_000)
                sums.append(batch.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [total.item() for total in sums] == expected


@pytest.mark.gpu
def test_resuming_on_cuda_with_pinned_batches_and_workers():
    arguments = {"dataset": range(20), "batch_size": 3, "device": "cuda", "workers": 2}
    whole = make_loader(**arguments)
    epochs = [epoch(whole) for _ in range(3)]
    for count in (0, 2, 6, 7):
        resumed = prefetch(make_loader(**arguments), "cuda", 3)
        resumed.load_state_dict(saved_after(prefetch(make_loader(**arguments), "cuda", 2), count))
        index, start = divmod(count, len(whole))
        assert epoch(resumed) == epochs[index][start:]
        assert epoch(resumed) == epochs[index + 1]
