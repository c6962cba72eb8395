"""`cached_arrays` in many processes at once, some of which are killed."""

import multiprocessing
import random
import threading
from contextlib import contextmanager

import pytest
from support import array_builders, processes

from torch_bridge import cached_arrays

pytestmark = pytest.mark.slow

CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("some bytes")
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@contextmanager
def stopped(number, source, cache, with_child=False):
    """A builder that has stopped before a batch, and the connection that lets it go on."""
    ours, theirs = CONTEXT.Pipe()
    arguments = number, source, cache, theirs, with_child
    builder = CONTEXT.Process(target=array_builders.stop_at, args=arguments)
    builder.start()
    theirs.close()
    try:
        assert ours.recv_bytes() == b"here"
        yield builder, ours
    finally:
        builder.kill()
        builder.join()
        ours.close()


def builders(source):
    return len(source.with_suffix(".log").read_text().split())


def folders(cache):
    return [path.suffix for path in cache.iterdir() if path.is_dir()]


def test_one_builds_and_all_get_the_arrays(source, cache):
    assert processes.run(array_builders.ask, source, cache, processes=4) == [True] * 4
    assert builders(source) == 1
    assert folders(cache) == [""]


@pytest.mark.parametrize("with_child", [False, True])
@pytest.mark.parametrize("number", [0, array_builders.BATCHES - 1])
def test_a_killed_builder_blocks_nobody_and_leaves_nothing(source, cache, number, with_child):
    with stopped(number, source, cache, with_child) as (builder, _):
        assert folders(cache) == [".partial"]
        builder.kill()
        builder.join()
        assert array_builders.is_whole(cached_arrays(array_builders.build, source, cache))
        assert folders(cache) == [""]
    assert builders(source) == 2


@pytest.mark.parametrize("kill", [False, True])
def test_a_process_that_waits_gets_the_arrays_or_builds_them(source, cache, kill):
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(cached_arrays(array_builders.build, source, cache))
    )
    with stopped(3, source, cache) as (builder, connection):
        waiting.start()
        if kill:
            builder.kill()
        else:
            connection.send_bytes(b"go on")
        builder.join()
        waiting.join()
    assert array_builders.is_whole(found[0])
    assert builders(source) == 1 + kill


def test_a_builder_at_work_is_left_alone(source, cache):
    other = source.with_name("other.txt")
    other.write_text("other bytes")
    with stopped(3, source, cache) as (builder, connection):
        assert array_builders.is_whole(cached_arrays(array_builders.build, other, cache))
        assert sorted(folders(cache)) == ["", ".partial"]
        connection.send_bytes(b"go on")
        builder.join()
        assert builder.exitcode == 0
    assert array_builders.is_whole(cached_arrays(array_builders.build, source, cache))
    assert builders(source) == 1


def test_what_a_killed_builder_left_goes_with_the_next_build_of_anything(source, cache):
    with stopped(3, source, cache):
        pass
    assert folders(cache) == [".partial"]
    other = source.with_name("other.txt")
    other.write_text("other bytes")
    assert array_builders.is_whole(cached_arrays(array_builders.build, other, cache))
    assert folders(cache) == [""]


def test_killed_at_any_moment(source, cache):
    moments = random.Random(0)
    for turn in range(20):
        source.write_text(f"turn {turn}")
        with stopped(moments.randrange(array_builders.BATCHES), source, cache) as (builder, connection):
            connection.send_bytes(b"go on")
            for _ in range(moments.randrange(100)):
                folders(cache)
            builder.kill()
            builder.join()
        assert array_builders.is_whole(cached_arrays(array_builders.build, source, cache))
        assert folders(cache) == [""] * (turn + 1)


def test_a_process_that_is_given_the_mapping_maps_the_files(source, cache):
    ours, theirs = CONTEXT.Pipe(duplex=False)
    found = cached_arrays(array_builders.build, source, cache)
    process = CONTEXT.Process(target=array_builders.tell_whole, args=(found, theirs))
    process.start()
    theirs.close()
    assert ours.recv() is True
    process.join()
    ours.close()
