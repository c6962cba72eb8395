"""An update over several ranks equals the update of one process over the rows of all ranks."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.distributed.distributed_updates import Case, Run, record_reads, train_all, train_in_one_process
from support.distributed.processes import run

pytestmark = pytest.mark.slow

_nan, _inf = float("nan"), float("inf")  # rows times inf have a finite loss, but not a finite gradient


def _assert_close(one: Run, other: Run, atol: float) -> None:
    for weight, expected in zip(one.weights, other.weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=atol)


def _check_same_on_all_ranks(runs: list[Run]) -> Run:
    first, *others = runs
    for other in others:
        assert repr(other[:-1]) == repr(first[:-1])
        for one, weight in zip(first.weights, other.weights, strict=True):
            assert np.array_equal(one, weight)
    return first


def _cases(**options: Iterable[Any]) -> list[Case]:
    """Return the cases with every combination of these options, each with a different seed."""
    combinations = enumerate(product(*options.values()))
    return [Case(**dict(zip(options, values, strict=True)), seed=seed) for seed, values in combinations]


_EITHER: dict[str, Any] = {
    "wrapper": ("ddp", "fsdp"),
    "synchronize": ("update", "micro"),
    "optimizer": ("adamw", "rmsprop"),
}
_CLIPPED: dict[str, Any] = {**_EITHER, "accumulation": (1, 2), "max_norm": [0.1]}
_LOSSES = "mean", "pair", "device pair"
_MATCHING: dict[str, list[Case]] = {
    "every loss": _cases(**_EITHER, loss=_LOSSES, accumulation=(1, 3), max_norm=(None, 0.05)),
    "static graph": [Case("static ddp", accumulation=3)],
    "averages that were switched off": [Case("fsdp left off", accumulation=3)],
    "not finite on one rank": _cases(
        **_CLIPPED, loss=_LOSSES[:2], corrupted=(((0, 0, _nan), (3, 1, _nan)), ((1, 1, _inf), (2, 0, _inf)))
    ),
    "ranks and updates without rows": _cases(
        **_CLIPPED, loss=_LOSSES[1:], empty=(((0, 0), (2, 1)), ((1, 0), (1, 1), (3, 1)))
    ),
    "hybrid sharding": _cases(
        **_EITHER | {"wrapper": ["hybrid"]},
        accumulation=[2],
        max_norm=[0.05],
        corrupted=[((3, 2, _nan),)],
        processes=[4],
    ),
    # Sums too large for fp16 do not overflow, because the collective gets values as small as means.
    "fp16 collectives": [
        case._replace(accumulation=accumulation, growth=growth)
        for accumulation, growth in ((1, 1e6), (3, 1e2))
        for case in _cases(
            wrapper=("ddp by fp16", "fsdp by fp16"),
            synchronize=("update", "micro"),
            loss=_LOSSES[1:],
            max_norm=[0.1],
        )
    ],
}


@pytest.mark.parametrize("name", _MATCHING)
def test_updates_match_one_process(name: str) -> None:
    cases, is_fp16 = _MATCHING[name], name == "fp16 collectives"
    for case, *runs in zip(cases, *run(train_all, cases, processes=cases[0].processes), strict=True):
        actual, expected = _check_same_on_all_ranks(runs), train_in_one_process(case)
        assert actual.counts == expected.counts
        assert expected.counts[-1][1] >= len(case.corrupted)
        _assert_close(actual, expected, 5e-3 if is_fp16 else 1e-5)
        if not is_fp16:
            assert actual.lrs == expected.lrs
            # Without rows or with infinite ones, ranks and process may differ in what is not finite.
            are_finite = np.isfinite(expected.losses) & np.isfinite(expected.norms)
            for values, expected_values, rtol in (
                (actual.losses, expected.losses, 1e-6),
                (actual.norms, expected.norms, 1e-5),
            ):
                finite = np.array(values)[are_finite], np.array(expected_values)[are_finite]
                np.testing.assert_allclose(*finite, atol=1e-6, rtol=rtol)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_update_of_two_ranks_reads_nothing(wrapper: str) -> None:
    assert run(record_reads, Case(wrapper, loss="mean", max_norm=0.1)) == [set(), set()]


def test_overflow_on_one_rank_is_skipped_on_all() -> None:
    cases = [
        Case(wrapper, optimizer, loss, accumulation, 0.1, "fp16", synchronize, corrupted=corrupted, updates=8)
        for wrapper, optimizer, loss, accumulation, corrupted in product(
            _EITHER["wrapper"], _EITHER["optimizer"], _LOSSES, (1, 3), ((), ((2, 1, 1e6), (3, 0, _nan)))
        )
        for synchronize in ("update", "micro")
    ]
    runs = [_check_same_on_all_ranks(ranks) for ranks in zip(*run(train_all, cases), strict=True)]
    for case, one, other in zip(cases[::2], runs[::2], runs[1::2], strict=True):
        expected = train_in_one_process(case)
        assert one.counts == other.counts
        _assert_close(one, other, 2e-4)
        if one.counts == expected.counts:
            _assert_close(one, expected, 5e-3)
        else:  # a scale that is still too large skips more
            assert one.counts[-1][1] > expected.counts[-1][1]
