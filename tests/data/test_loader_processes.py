"""The loader on several ranks: their joined shares are the batches of a single process.

A resumed run continues with the first batch not handed out, on any number of ranks.
"""

from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from support.data.batches_by_rank import Stage, check_stages, expected, in_each, shared, side_by_side, split
from support.data.loaders import WORKERS, Arguments, depths, epoch
from support.distributed import processes as real
from support.examples import examples

from torch_bridge import make_loader

pytestmark = WORKERS

Shared = tuple[Arguments, list[int]]
# Its last batch has one sample.
RAGGED: Arguments = {"dataset": range(9), "batch_size": 4, "training": False, "seed": 0}


def _epochs(arguments: Arguments) -> tuple[list[Any], int]:
    loader = make_loader(**arguments, num_workers=0)
    return [epoch(loader) for _ in range(2)], len(loader)


@given(shared())
@example((RAGGED, [4]))
@examples(200)
def test_joined_shares_equal_single_process_batches(case: Shared) -> None:
    arguments, (count,) = case
    by_rank = in_each(_epochs, split(arguments, count), processes=count)
    for index, expected_epoch in enumerate(expected(arguments, 2)):
        shares = [epochs[index] for epochs, _ in by_rank]
        assert side_by_side(shares) == expected_epoch
        for rank, (_, length) in enumerate(by_rank):
            assert length == len(shares[rank])
            assert length == len(expected_epoch) or (
                not arguments["training"] and len(expected_epoch[-1]) < count
            )
        for batch in range(len(expected_epoch)):
            sizes = [len(share[batch]) if batch < len(share) else 0 for share in shares]
            assert max(sizes) - min(sizes) <= 1
            assert sizes[0] == max(sizes)
            assert max(sizes) <= arguments["batch_size"] // count


@st.composite
def runs(draw: st.DrawFn) -> tuple[Arguments, list[Stage]]:
    arguments, (*numbers, last) = draw(shared(3))
    length, begin, stages = len(expected(arguments, 1)[0]), 0, list[Stage]()
    for processes in numbers:
        whole = draw(st.integers(0, 1))
        begin = 0 if whole else begin
        more = draw(st.integers(0, length - begin + 1))  # the last one is a request after an epoch's end
        begin = begin + more if begin + more < length else 0
        stages.append((processes, whole, more, draw(depths)))
    return arguments, [*stages, (last, 2, 0, draw(depths))]


@given(runs())
@example((RAGGED, [(4, 0, 3, 2), (2, 0, 0, 2), (1, 2, 0, 2)]))
@example((RAGGED | {"training": True}, [(1, 0, 2, 0), (1, 0, 3, 0), (1, 2, 0, 3)]))
@examples(300)
def test_resume_twice_with_other_world_sizes(run: tuple[Arguments, list[Stage]]) -> None:
    check_stages(*run, num_workers=0)


@pytest.mark.slow
@given(runs(), st.booleans())
@example((RAGGED, [(4, 0, 3, 2), (2, 0, 0, 2), (1, 2, 0, 2)]), True)
@examples(4)
def test_resume_with_workers(run: tuple[Arguments, list[Stage]], persistent: bool) -> None:
    """Workers inherit torchrun's variables."""
    check_stages(*run, num_workers=2, persistent_workers=persistent)


@pytest.mark.slow
def test_workers_start_as_on_windows() -> None:
    spawned = make_loader(range(8), 2, num_workers=1, multiprocessing_context="spawn")
    assert epoch(spawned) == epoch(make_loader(range(8), 2, num_workers=0))


@pytest.mark.slow
def test_resume_twice_in_process_groups() -> None:
    arguments: Arguments = {"dataset": range(31), "batch_size": 6, "training": False, "seed": 2}
    stages = [(2, 0, 2, 1), (1, 0, 1, 0), (3, 2, 0, 1)]
    check_stages({**arguments, "shuffle": True}, stages, real.run, num_workers=0)
