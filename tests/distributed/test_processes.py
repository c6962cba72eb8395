"""The group of processes that call the tests marked `ranks` outlives what a test does to it."""

import os
import signal

import pytest
from support.distributed import processes
from support.distributed.processes import RankGroup
from torch import distributed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def group():
    group = RankGroup(2)
    yield group
    group.close()


@pytest.fixture(autouse=True)
def next_test_runs(group):
    yield
    assert group.call(distributed.get_rank) == [0, 1]


def test_error_is_shown(group):
    with pytest.raises(AssertionError, match="ValueError: invalid literal for int"):
        group.call(int, "one")


def test_crash_is_an_error(group):
    with pytest.raises(AssertionError, match=r"process [01] ended with 7"):
        group.call(os._exit, 7)


def test_endless_call_is_an_error(group, monkeypatch):
    group.call(distributed.barrier)
    monkeypatch.setattr(processes, "_LIMIT", 0.1)
    with pytest.raises(AssertionError, match=r"processes \[0, 1\] took over 0.1 s"):
        group.call(signal.pause)
    monkeypatch.undo()
