"""The loader on several ranks: their joined shares are the batches of a single process."""

from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from support.data.batches_by_rank import (
    expected,
    in_each,
    load_in_stages,
    shared,
    side_by_side,
    split,
)
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
            assert max(sizes) <= arguments["batch_size"] // count


@st.composite
def stages(draw: st.DrawFn) -> tuple[Arguments, list[tuple[int, int | None]]]:
    given, numbers = draw(shared(3))
    length = len(expected(given, 1)[0])
    first, last = sorted(draw(st.tuples(*[st.integers(0, length)] * 2)))
    # A stage that begins at an epoch's end would continue with the next epoch.
    cuts = (first, last - first if first < length else 0, None)
    return given, list(zip(numbers, cuts, strict=True))


@given(stages(), depths)
@example((RAGGED, [(4, 3), (2, 0), (1, None)]), 2)
@examples(200)
def test_resume_twice_with_other_world_sizes(
    case: tuple[Arguments, list[tuple[int, int | None]]], depth: int
) -> None:
    arguments, cuts = case
    seen, rest, after = load_in_stages({**arguments, "num_workers": 0}, cuts, in_each, depth)
    first, *others = expected(arguments, 3)
    # At an epoch's end the next epoch is left.
    assert seen + rest == first if len(seen) < len(first) else (seen, rest) == (first, others[0])
    assert after == others[0 if len(seen) < len(first) else 1]


@pytest.mark.slow
def test_workers_change_nothing_on_ranks() -> None:
    """Neither samples nor positions change, though workers inherit torchrun's variables."""
    arguments: Arguments = {"dataset": range(23), "batch_size": 8, "training": True, "seed": 1}

    def run(function: Any, arguments: Arguments, *rest: Any, processes: int) -> list[Any]:
        workers = {1: 0, 2: 1, 4: 2}[processes]
        return in_each(function, {**arguments, "num_workers": workers}, *rest, processes=processes)

    first, second = expected(arguments, 2)
    seen, rest, after = load_in_stages(arguments, [(2, 1), (1, 0), (4, None)], run)
    assert seen + rest == first
    assert after == second


@pytest.mark.slow
def test_resume_twice_in_process_groups() -> None:
    arguments: Arguments = {
        "dataset": range(31),
        "batch_size": 6,
        "training": False,
        "num_workers": 0,
        "seed": 2,
    }
    arguments["shuffle"] = True
    first, second = expected(arguments, 2)
    seen, rest, after = load_in_stages(arguments, [(1, 1), (2, 2), (1, None)], real.run)
    assert seen + rest == first
    assert after == second
    seen, rest, after = load_in_stages(arguments, [(2, 2), (1, 1), (3, None)], real.run, 1)
    assert seen + rest == first
    assert after == second
