"""An update over several ranks equals the update of one process over the rows of all ranks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.distributed.distributed_updates import (
    RankCase,
    RankResults,
    assert_same_run,
    record_reads,
    train_all,
    train_in_one_process,
)
from support.distributed.processes import run

pytestmark = pytest.mark.slow

NAN = float("nan")
INF = float("inf")  # rows times inf have a finite loss, but not a finite gradient


def run_on_ranks(cases: Sequence[RankCase]) -> list[RankResults]:
    """Return the run of each case, which must be the same on all ranks."""
    first_rank, *other_ranks = run(train_all, cases, processes=cases[0].processes)
    for runs in other_ranks:
        for actual, expected in zip(runs, first_rank, strict=True):
            assert_same_run(actual, expected)
    return first_rank


def assert_close(values: Sequence[Any], expected: Sequence[Any], **tolerance: float) -> None:
    for value, expected_value in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, expected_value, **tolerance)


def combinations(**options: Iterable[Any]) -> list[RankCase]:
    """Return a case for each combination of these options, each with a different seed."""
    cases: list[RankCase] = []
    for values in product(*options.values()):
        case = RankCase(**dict(zip(options, values, strict=True)), seed=len(cases))
        cases.append(case)
    return cases


def every_loss() -> list[RankCase]:
    return combinations(
        wrapper=["ddp", "fsdp"],
        synchronize=["update", "micro"],
        optimizer=["adamw", "rmsprop"],
        loss=["mean", "pair", "device pair"],
        accumulation=[1, 3],
        max_norm=[None, 0.05],
    )


def static_graph() -> list[RankCase]:
    return [RankCase("static ddp", accumulation=3)]


def averages_that_were_switched_off() -> list[RankCase]:
    return [RankCase("fsdp left off", accumulation=3)]


def not_finite_on_one_rank() -> list[RankCase]:
    return combinations(
        wrapper=["ddp", "fsdp"],
        synchronize=["update", "micro"],
        optimizer=["adamw", "rmsprop"],
        accumulation=[1, 2],
        max_norm=[0.1],
        loss=["mean", "pair"],
        corrupted=[
            ((0, 0, NAN), (3, 1, NAN)),
            ((1, 1, INF), (2, 0, INF)),
        ],
    )


def ranks_and_updates_without_rows() -> list[RankCase]:
    return combinations(
        wrapper=["ddp", "fsdp"],
        synchronize=["update", "micro"],
        optimizer=["adamw", "rmsprop"],
        accumulation=[1, 2],
        max_norm=[0.1],
        loss=["pair", "device pair"],
        empty=[
            ((0, 0), (2, 1)),
            ((1, 0), (1, 1), (3, 1)),
        ],
    )


def hybrid_sharding() -> list[RankCase]:
    return combinations(
        wrapper=["hybrid"],
        synchronize=["update", "micro"],
        optimizer=["adamw", "rmsprop"],
        accumulation=[2],
        max_norm=[0.05],
        corrupted=[((3, 2, NAN),)],
        processes=[4],
    )


@pytest.mark.parametrize(
    "cases_of",
    [
        every_loss,
        static_graph,
        averages_that_were_switched_off,
        not_finite_on_one_rank,
        ranks_and_updates_without_rows,
        hybrid_sharding,
    ],
)
def test_updates_match_one_process(cases_of: Callable[[], list[RankCase]]) -> None:
    cases = cases_of()
    for case, actual in zip(cases, run_on_ranks(cases), strict=True):
        expected = train_in_one_process(case)
        assert actual.lrs == expected.lrs
        assert actual.counts == expected.counts
        _, skipped = expected.counts[-1]
        assert skipped >= len(case.corrupted)
        assert_close(actual.weights, expected.weights, atol=1e-5)
        # Without rows or with infinite ones, ranks and process may differ in what is not finite.
        finite = np.isfinite(expected.losses) & np.isfinite(expected.norms)
        losses = np.array(actual.losses)[finite]
        expected_losses = np.array(expected.losses)[finite]
        np.testing.assert_allclose(losses, expected_losses, atol=1e-6, rtol=1e-6)
        norms = np.array(actual.norms)[finite]
        expected_norms = np.array(expected.norms)[finite]
        np.testing.assert_allclose(norms, expected_norms, atol=1e-6, rtol=1e-5)


def test_fp16_collectives_match_one_process() -> None:
    """Sums too large for fp16 do not overflow: the collective gets values as small as means."""
    same_for_all = combinations(
        wrapper=["ddp by fp16", "fsdp by fp16"],
        synchronize=["update", "micro"],
        loss=["pair", "device pair"],
        max_norm=[0.1],
    )
    cases = [replace(case, accumulation=1, growth=1e6) for case in same_for_all]
    cases += [replace(case, accumulation=3, growth=1e2) for case in same_for_all]
    for case, actual in zip(cases, run_on_ranks(cases), strict=True):
        expected = train_in_one_process(case)
        assert actual.counts == expected.counts
        assert_close(actual.weights, expected.weights, atol=5e-3)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_update_of_two_ranks_reads_nothing(wrapper: str) -> None:
    assert run(record_reads, RankCase(wrapper, loss="mean", max_norm=0.1)) == [set(), set()]


def test_overflow_on_one_rank_is_skipped_on_all() -> None:
    overflows = combinations(
        wrapper=["ddp", "fsdp"],
        optimizer=["adamw", "rmsprop"],
        loss=["mean", "pair", "device pair"],
        accumulation=[1, 3],
        corrupted=[(), ((2, 1, 1e6), (3, 0, NAN))],
        max_norm=[0.1],
        precision=["fp16"],
        updates=[8],
    )
    cases = [replace(case, seed=0) for case in overflows]
    once = run_on_ranks([replace(case, synchronize="update") for case in cases])
    each_time = run_on_ranks([replace(case, synchronize="micro") for case in cases])
    for case, by_update, by_micro_batch in zip(cases, once, each_time, strict=True):
        expected = train_in_one_process(case)
        assert by_update.counts == by_micro_batch.counts
        assert_close(by_update.weights, by_micro_batch.weights, atol=2e-4)
        if by_update.counts == expected.counts:
            assert_close(by_update.weights, expected.weights, atol=5e-3)
        else:  # a scale that is still too large skips more
            _, skipped = by_update.counts[-1]
            _, expected_skipped = expected.counts[-1]
            assert skipped > expected_skipped
