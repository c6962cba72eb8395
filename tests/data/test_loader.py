"""The loader on one and on several ranks: epochs, settings and position; `count_updates`."""

import os
import random
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.data.loaders import WORKERS, build, epoch, on_each_rank
from support.distributed.processes import run
from support.examples import examples
from support.training.steps import through_file
from support.trees import assert_equal_trees
from torch.utils.data import BatchSampler, DataLoader

from torch_bridge import count_updates, make_loader

pytestmark = WORKERS

two_workers = pytest.param(2, marks=pytest.mark.slow)
with_and_without_workers = pytest.mark.parametrize("num_workers", [0, two_workers])

Epoch = list[list[int]]
"""The batches of an epoch, or of its rest: the indices of their samples."""

seeds = st.integers(0, 2**32 - 1)
depths = st.integers(0, 3)


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 2])
def test_loader_keeps_global_random_states(num_workers, depth):
    def states():
        of_numpy = repr(np.random.get_state())  # noqa: NPY002  this is about the global one
        return torch.get_rng_state().tolist(), of_numpy, random.getstate()

    before = states()
    feed = build({"dataset": range(9), "batch_size": 2}, depth, num_workers=num_workers)
    epoch(feed)
    next(iter(feed))
    state = feed.state_dict()
    epoch(feed)
    feed.load_state_dict(state)
    epoch(feed)
    assert states() == before


class OnDefaultDevice:
    """Samples created on torch's default device when they are requested."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return torch.full((2,), index)


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 2])
def test_default_device_changes_nothing(num_workers, depth):
    """A loader is built, iterated, saved and resumed while "meta" is the default device."""

    def run():
        arguments = {"dataset": OnDefaultDevice(), "batch_size": 2, "num_workers": num_workers}
        interrupted = build(arguments, depth)
        first = next(iter(interrupted))
        assert first.device.type == "cpu"
        resumed = build(arguments, depth)
        resumed.load_state_dict(interrupted.state_dict())
        return [first.tolist(), epoch(resumed), epoch(resumed)]

    expected = run()
    with torch.device("meta"):
        assert run() == expected
        assert torch.get_default_device().type == "meta"


def test_workers_of_each_rank_draw_other_numbers():
    """DataLoader seeds the workers from this generator."""
    loaders = on_each_rank(partial(make_loader, range(8), 2, num_workers=0, seed=3), processes=4)
    seeds_of_workers = set()
    for loader in loaders:
        number = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        seeds_of_workers.add(int(number))
    assert len(seeds_of_workers) == 4


@pytest.mark.parametrize(
    ("processes", "cores", "workers"),
    [(1, 1, 0), (1, 2, 1), (1, 9, 8), (1, 64, 8), (4, 7, 0), (4, 8, 1), (4, 16, 3), (4, 200, 8)],
)
def test_default_workers_follow_usable_cores_up_to_limit(monkeypatch, processes, cores, workers):
    """The processes of a machine share its cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    loader = make_loader(range(4), 2)
    assert loader.num_workers == workers
    assert loader.persistent_workers == (workers > 0)


def test_trainers_can_read_the_usual_attributes():
    loader = make_loader(range(10), 4, num_workers=0)
    assert (loader.batch_size, loader.drop_last) == (4, True)
    assert isinstance(loader.batch_sampler, BatchSampler)


@pytest.mark.parametrize(
    ("device", "pinned"), [("cuda", True), ("cuda:1", True), ("cpu", False), (None, False)]
)
def test_only_batches_for_cuda_are_pinned(device, pinned):
    assert make_loader(range(4), 2, device=device).pin_memory == pinned
    assert not make_loader(range(4), 2, device=device, pin_memory=False).pin_memory


def order_of(seed, epoch_number, samples):
    """Return the order of an epoch, as torch's DistributedSampler draws it."""
    generator = torch.Generator().manual_seed((seed + epoch_number) % 2**32)
    return torch.randperm(samples, generator=generator).tolist()


@given(seeds, st.lists(st.integers(0, 3) | st.integers(0, 2**40), min_size=2, max_size=2))
def test_any_epoch_is_reachable_from_any_other(seed, numbers):
    """A state may lead forward or back."""
    loader = make_loader(range(9), 9, seed=seed, num_workers=0)
    state = loader.state_dict()
    for number in numbers:
        loader.load_state_dict({**state, "epoch": number})
        assert epoch(loader) == [order_of(seed, number, 9)]
        assert epoch(loader) == [order_of(seed, number + 1, 9)]


@with_and_without_workers
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("loads", [False, True])
def test_new_iteration_or_load_ends_earlier_one(num_workers, depth, loads):
    """With workers the old one would take batches away from the new one."""
    arguments = {"dataset": range(10), "batch_size": 2, "num_workers": num_workers}
    uninterrupted = build(arguments)
    first_epoch = epoch(uninterrupted)
    feed = build(arguments, depth)
    old = iter(feed)
    assert next(old).tolist() == first_epoch[0]
    if loads:
        feed.load_state_dict(feed.state_dict())
        expected = first_epoch[1:]
    else:
        expected = epoch(uninterrupted)
    new = iter(feed)
    assert next(new).tolist() == expected[0]
    assert_ended(old)
    state = feed.state_dict()
    assert epoch(new) == expected[1:]
    resumed = build(arguments)
    resumed.load_state_dict(state)
    assert epoch(resumed) == expected[1:]


def assert_ended(iteration):
    with pytest.raises(RuntimeError, match="this iteration was ended"):
        next(iteration)
    assert next(iteration, None) is None


@given(st.integers(0, 3), depths)
def test_resumed_loader_meets_same_failing_sample(fails_at, depth):
    values = [0, 1, 2, 3]
    values[fails_at] = "no number"
    arguments = {
        "dataset": values,
        "batch_size": 1,
        "training": False,
        "num_workers": 0,
        "collate_fn": torch.tensor,
    }
    feed = build(arguments, depth)
    loaded = []
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        loaded.extend(batch.item() for batch in feed)
    assert loaded == list(range(fails_at))
    resumed = build(arguments, depth)
    resumed.load_state_dict(feed.state_dict())
    with pytest.raises(ValueError, match="too many dimensions 'str'"):
        next(iter(resumed))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_count_updates_equals_updates_of_a_loop(samples, size, accumulation, drop_last, epochs):
    loader = DataLoader(range(samples), batch_size=size, drop_last=drop_last)
    updates = 0
    for _ in range(epochs):
        waiting = 0
        for _ in loader:
            waiting += 1
            if waiting == accumulation:
                updates += 1
                waiting = 0
        if waiting > 0:
            updates += 1
    if not updates:
        return  # an error, which test_errors has
    batches = len(loader)
    for argument in (loader, batches, np.int32(batches), torch.tensor(batches), [0] * batches):
        result = count_updates(argument, epochs, accumulation=accumulation)
        assert result == updates
        assert type(result) is int


# The loader on several ranks: their joined shares are the batches of a single process, also if a
# run is interrupted and resumed, each time by a different number of processes.


def join_shares(shares):
    """Join the batches of all ranks into global batches."""
    return [
        [index for batch in batches for index in batch]
        for batches in zip_longest(*shares, fillvalue=[])
    ]


def split(arguments, processes):
    """Return the arguments on one rank, for those with the global batch size."""
    return {**arguments, "batch_size": arguments["batch_size"] // processes}


@st.composite
def loaders_for_ranks(draw):
    """Draw arguments with a global batch size, and three numbers of processes that divide it."""
    batch_size = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    training = draw(st.booleans())
    arguments = {"training": training, "seed": draw(seeds), "batch_size": batch_size}
    for name in draw(st.sets(st.sampled_from(["shuffle", "drop_last"]))):
        arguments[name] = draw(st.booleans())
    divisors = [processes for processes in range(1, 5) if batch_size % processes == 0]
    processes = draw(st.lists(st.sampled_from(divisors), min_size=3, max_size=3))
    if arguments.get("drop_last", training):
        lengths = list(range(batch_size, 41))
    elif training:
        # Each process also needs a sample of the last batch.
        lengths = [
            n for n in range(1, 41) if n % batch_size == 0 or n % batch_size >= max(processes)
        ]
    else:
        lengths = list(range(1, 41))
    arguments["dataset"] = range(draw(st.sampled_from(lengths)))
    return arguments, processes


def expected_epochs(arguments, count):
    """Compute the global batches of each epoch."""
    samples = len(arguments["dataset"])
    batch_size = arguments["batch_size"]
    training = arguments["training"]
    epochs = []
    for number in range(count):
        order = list(range(samples))
        if arguments.get("shuffle", training):
            order = order_of(arguments["seed"], number, samples)
        if arguments.get("drop_last", training):
            order = order[: samples // batch_size * batch_size]
        firsts = range(0, len(order), batch_size)
        epochs.append([order[first : first + batch_size] for first in firsts])
    return epochs


# Its last batch has one sample.
RAGGED = {"dataset": range(9), "batch_size": 4, "training": False, "seed": 0}


class Stage(NamedTuple):
    """What the processes load before a run is interrupted."""

    processes: int
    epochs: int
    """The number of epochs that they load to the end."""
    batches: int
    """The number of batches after them."""
    depth: int
    """The number of batches that are fetched ahead."""


@dataclass
class Loaded:
    """What a process has loaded in a stage."""

    epochs: list[Epoch]
    batches: Epoch
    state: Any
    length: int
    """The number of batches in an epoch of this process."""


def load(arguments, state, stage):
    """Resume from a state, and load what belongs to a stage."""
    feed = build(arguments, stage.depth)
    if state is not None:
        feed.load_state_dict(through_file(state))
    epochs = [epoch(feed) for _ in range(stage.epochs)]
    batches = []
    if stage.batches > 0:
        batches = epoch(islice(feed, stage.batches))
    return Loaded(epochs, batches, feed.state_dict(), len(feed))


def check_shares(shares, expected_epoch, training):
    """Check that each batch is split evenly, with the larger shares first."""
    for share in shares:
        # A rank has no sample of a last batch with fewer samples than ranks.
        is_ragged = not training and len(expected_epoch[-1]) < len(shares)
        assert len(share) == len(expected_epoch) or is_ragged
    sizes_by_rank = [list(map(len, share)) for share in shares]
    for sizes in zip_longest(*sizes_by_rank, fillvalue=0):
        assert max(sizes) - min(sizes) <= 1
        assert sizes[0] == max(sizes)


def check_stages(arguments, stages, run=on_each_rank, **options):
    """Resume each stage from the one before; compare the batches of all ranks with the expected.

    `run(function, *arguments, processes=)` returns what the function returns on each rank.
    """
    epochs = expected_epochs(arguments, 3 * len(stages))
    number = 0  # of the epoch
    begin = 0  # the batch of the epoch that comes next
    state = None
    for stage in stages:
        arguments_of_rank = split(arguments, stage.processes) | options
        ranks = run(load, arguments_of_rank, state, stage, processes=stage.processes)
        for index in range(stage.epochs):
            shares = [rank.epochs[index] for rank in ranks]
            assert join_shares(shares) == epochs[number][begin:]
            if begin == 0:
                assert list(map(len, shares)) == [rank.length for rank in ranks]
                check_shares(shares, epochs[number], arguments["training"])
            number += 1
            begin = 0
        end = begin + stage.batches
        loaded = join_shares([rank.batches for rank in ranks])
        assert loaded == epochs[number][begin:end]
        begin = end
        if end >= len(epochs[number]):
            number += 1
            begin = 0
        last = ranks[-1]
        for rank in ranks:
            assert_equal_trees(rank.state, last.state)
        state = last.state


@st.composite
def runs(draw):
    arguments, (*numbers, last) = draw(loaders_for_ranks())
    length = len(expected_epochs(arguments, 1)[0])
    begin = 0
    stages = []
    for processes in numbers:
        epochs = draw(st.integers(0, 1))
        if epochs > 0:
            begin = 0
        # The last one is a request after an epoch's end.
        batches = draw(st.integers(0, length - begin + 1))
        begin += batches
        if begin >= length:
            begin = 0
        stages.append(Stage(processes, epochs, batches, depth=draw(depths)))
    return arguments, [*stages, Stage(last, epochs=2, batches=0, depth=draw(depths))]


FROM_FOUR_PROCESSES_TO_ONE = [Stage(4, 0, 3, 2), Stage(2, 0, 0, 2), Stage(1, 2, 0, 2)]
ONE_PROCESS = [Stage(1, 0, 2, 0), Stage(1, 0, 3, 0), Stage(1, 2, 0, 3)]


@given(runs())
@example((RAGGED, FROM_FOUR_PROCESSES_TO_ONE))
@example((RAGGED | {"training": True}, ONE_PROCESS))
@examples(300)
def test_resume_twice_with_other_world_sizes(run):
    check_stages(*run, num_workers=0)


@pytest.mark.slow
@given(runs(), st.booleans())
@example((RAGGED, FROM_FOUR_PROCESSES_TO_ONE), True)
@examples(4)
def test_resume_with_workers(run, persistent):
    """Workers inherit torchrun's variables."""
    check_stages(*run, num_workers=2, persistent_workers=persistent)


@pytest.mark.slow
def test_resume_twice_in_process_groups():
    arguments = {"dataset": range(31), "batch_size": 6, "training": False, "seed": 2}
    stages = [Stage(2, 0, 2, 1), Stage(1, 0, 1, 0), Stage(3, 2, 0, 1)]
    check_stages({**arguments, "shuffle": True}, stages, run, num_workers=0)
