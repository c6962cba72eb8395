"""Wrong arguments and states of loaders and `prefetch`: errors name them, and nothing changes."""

import pytest
import torch
from support.curves.requirements import at_least, in_range
from support.data.loaders import build, epoch, process
from support.raises import raises
from torch.utils.data import IterableDataset

from torch_bridge import make_loader, prefetch


class Endless(IterableDataset[int]):
    def __iter__(self):
        return iter(range(4))


def new_loader():
    return make_loader(range(8), 4, num_workers=0)


@pytest.fixture
def loader():
    """A loader, which must still give the batches of a new one when the test ends."""
    loader = new_loader()
    yield loader
    assert epoch(loader) == epoch(new_loader())


# Arguments.


@raises(TypeError, "dataset = ", "Endless", "must have a length")
def test_iterable_dataset():
    make_loader(Endless(), 4)


@pytest.mark.parametrize(
    ("error", "options", "requirement"),
    [
        (ValueError, {"batch_size": 0}, at_least(1)),
        (ValueError, {"num_workers": -1}, at_least(0)),
        (ValueError, {"seed": 2**32}, in_range(0, 2**32 - 1)),
        (TypeError, {"sampler": range(8)}, "cannot be passed"),
    ],
)
def test_wrong_option(error, options, requirement):
    arguments = {"batch_size": 4, **options}
    ((name, value),) = options.items()
    with raises(error, f"{name} = {value!r}", requirement):
        make_loader(range(8), **arguments)


# Several processes.


def on_rank(rank, ranks, samples, **options):
    with process(rank, ranks):
        return make_loader(range(samples), 4, num_workers=0, **options)


def test_wrong_number_of_samples():
    with raises(ValueError, "3 samples give no batch of batch_size = 4", "drop_last = True"):
        make_loader(range(3), 4)
    with raises(ValueError, "7 samples", "batch_size = 4", "world_size = 2"):
        on_rank(0, 2, 7)
    with raises(ValueError, "9 samples leave 1 for 2", "drop_last = True"):
        on_rank(0, 2, 9, drop_last=False)


@raises(ValueError, "batch_size = 8 (now 12)", "of all processes")
def test_state_of_a_different_global_batch_size():
    saved = on_rank(0, 2, 24)
    loader = on_rank(1, 3, 24)
    loader.load_state_dict(saved.state_dict())


@raises(RuntimeError, "built for one process", "there are 2 now")
def test_loader_built_before_the_process_group(loader):
    with process(0, 2):
        next(iter(loader))


# States.


@pytest.mark.parametrize(
    ("samples", "options", "difference"),
    [
        (9, {}, "samples = 9 (now 8)"),
        (8, {"batch_size": 2}, "batch_size = 2 (now 4)"),
        (8, {"seed": 1}, "seed = 1 (now 0)"),
        (8, {"shuffle": False}, "shuffle = False (now True)"),
        (8, {"training": False}, "drop_last = False (now True)"),
    ],
)
def test_state_of_a_different_loader(loader, samples, options, difference):
    arguments = {"batch_size": 4, "num_workers": 0, **options}
    saved = make_loader(range(samples), **arguments)
    state = saved.state_dict()
    with raises(ValueError, "saved by a loader with", difference):
        loader.load_state_dict(state)


@raises(ValueError, "epoch = -1", at_least(0))
def test_negative_epoch(loader):
    loader.load_state_dict({**loader.state_dict(), "epoch": -1})


@pytest.mark.parametrize("depth", [0, 2])
def test_iteration_continues_after_a_rejected_state(depth):
    arguments = {"dataset": range(8), "batch_size": 2, "num_workers": 0}
    feed = build(arguments, depth)
    first, *others = epoch(build(arguments))
    batches = iter(feed)
    assert next(batches).tolist() == first
    state = feed.state_dict()
    with pytest.raises(ValueError, match="batch = 4"):
        feed.load_state_dict({**state, "batch": 4})
    assert feed.state_dict() == state
    assert [batch.tolist() for batch in batches] == others


# Prefetching.


def test_wrong_prefetch():
    with raises(AttributeError, "'list' object has no attribute 'state_dict'"):
        prefetch([torch.ones(1)], "cpu").state_dict()
    with raises(ValueError, "depth = 0", at_least(1)):
        prefetch([], "cpu", depth=0)
    with raises(ValueError, "device = 'meta'", "available CUDA device"):
        prefetch([], "meta")
