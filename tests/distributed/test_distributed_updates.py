"""An update over several ranks equals the update of one process over the rows of all ranks."""

from itertools import product

import numpy as np
import pytest
import torch
from support.distributed.distributed_updates import (
    Case,
    Run,
    multiplications,
    reads_of_cases,
    train_all,
    train_in_one_process,
)
from support.distributed.processes import run

pytestmark = pytest.mark.slow

_WRAPPERS = ("ddp", "fsdp")
_nan, _inf = float("nan"), float("inf")  # rows times inf have a finite loss, but not a finite gradient


def _check(found: Run, expected: Run) -> None:
    assert found.counts == expected.counts
    assert found.lrs == expected.lrs
    np.testing.assert_allclose(found.losses, expected.losses, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(found.norms, expected.norms, atol=1e-6, rtol=1e-5)
    _check_weights(found, expected)


def _check_weights(found: Run, expected: Run, atol: float = 1e-5) -> None:
    for one, other in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


def _check_same_on_all_ranks(runs: list[Run]) -> Run:
    first, *others = runs
    for other in others:
        assert repr(other[:-1]) == repr(first[:-1])
        for one, weight in zip(first.weights, other.weights, strict=True):
            assert np.array_equal(one, weight)
    return first


def test_updates_match_one_process() -> None:
    cases = [
        Case(wrapper, optimizer, loss, accumulation, max_norm, "fp32", synchronize, seed=number)
        for number, (wrapper, optimizer, loss, accumulation, max_norm, synchronize) in enumerate(
            product(
                _WRAPPERS,
                ("adamw", "rmsprop"),
                ("mean", "pair", "device pair"),
                (1, 3),
                (None, 0.05),
                ("update", "micro"),
            )
        )
    ]
    cases.append(Case("static ddp", accumulation=3))
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        _check(_check_same_on_all_ranks(runs), train_in_one_process(case))


def test_updates_with_carry_match_one_process() -> None:
    cases = [
        Case(
            wrapper,
            "adamw",
            "mean",
            accumulation,
            0.1,
            synchronize=synchronize,
            recurrent=True,
            spoiled=spoiled,
        )
        for wrapper, accumulation, synchronize, spoiled in product(
            _WRAPPERS, (1, 2), ("update", "micro"), ((), ((2, 1, _nan),))
        )
    ]
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        _check(_check_same_on_all_ranks(runs), train_in_one_process(case))


def test_nonfinite_update_is_skipped_on_all_ranks() -> None:
    cases = [
        Case(wrapper, optimizer, loss, accumulation, 0.1, synchronize=synchronize, spoiled=spoiled)
        for wrapper, optimizer, loss, accumulation, synchronize, spoiled in product(
            _WRAPPERS,
            ("adamw", "rmsprop"),
            ("mean", "pair"),
            (1, 2),
            ("update", "micro"),
            (((0, 0, _nan), (3, 1, _nan)), ((1, 1, _inf), (2, 0, _inf))),
        )
    ]
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        found, expected = _check_same_on_all_ranks(runs), train_in_one_process(case)
        assert found.counts[-1] == (4, 2)
        assert found.counts == expected.counts
        _check_weights(found, expected)


def test_ranks_and_updates_without_rows() -> None:
    cases = [
        Case(wrapper, optimizer, loss, accumulation, 0.1, synchronize=synchronize, empty=empty)
        for wrapper, optimizer, loss, accumulation, synchronize, empty in product(
            _WRAPPERS,
            ("adamw", "rmsprop"),
            ("pair", "device pair"),
            (1, 2),
            ("update", "micro"),
            (((0, 0), (2, 1)), ((1, 0), (1, 1), (3, 1))),
        )
    ]
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        found, expected = _check_same_on_all_ranks(runs), train_in_one_process(case)
        assert found.counts == expected.counts
        _check_weights(found, expected)


def test_fifty_updates_match_one_process() -> None:
    cases = [
        Case(wrapper, optimizer, "device pair", 2, 0.5, synchronize=synchronize, updates=50)
        for wrapper, synchronize in product(_WRAPPERS, ("update", "micro"))
        for optimizer in ("adamw", "plain momentum")
    ]
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        _check(_check_same_on_all_ranks(runs), train_in_one_process(case))


def test_gradients_are_multiplied_only_as_needed() -> None:
    """Once to clip; for pairs and under fp16 once before. Factors have their dtype: one operator on a GPU."""
    cases = [
        Case(wrapper, "adamw", loss, accumulation, 0.1, precision)
        for wrapper, loss, accumulation, precision in product(
            _WRAPPERS, ("mean", "pair", "device pair"), (1, 2), ("fp32", "fp16")
        )
    ]
    expected = [
        [torch.float32] * (1 if (case.loss, case.precision) == ("mean", "fp32") else 2) for case in cases
    ]
    assert run(multiplications, cases) == [expected, expected]


def test_no_update_synchronizes_with_the_device() -> None:
    cases = [
        Case(wrapper, "adamw", loss, 2, 0.1, precision, synchronize, spoiled=((3, 1, _nan),))
        for wrapper, loss, precision, synchronize in product(
            _WRAPPERS, ("mean", "device pair"), ("fp32", "fp16"), ("update", "micro")
        )
    ]
    assert run(reads_of_cases, cases) == [[[]] * len(cases)] * 2


def test_hybrid_sharding_matches_one_process() -> None:
    cases = [
        Case("hybrid", optimizer, "pair", 2, 0.05, "fp32", synchronize, spoiled=((3, 2, _nan),), processes=4)
        for optimizer, synchronize in product(("adamw", "rmsprop"), ("update", "micro"))
    ]
    for case, *runs in zip(cases, *run(train_all, cases, processes=4), strict=True):
        found, expected = _check_same_on_all_ranks(runs), train_in_one_process(case)
        assert found.counts == expected.counts
        np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5)
        _check_weights(found, expected)


def test_overflow_on_one_rank_is_skipped_on_all() -> None:
    """If one rank overflows, all skip and lower the scale, with averages per micro-batch or per update."""
    cases = [
        Case(wrapper, optimizer, loss, accumulation, 0.1, "fp16", synchronize, spoiled=spoiled, updates=8)
        for wrapper, optimizer, loss, accumulation, spoiled in product(
            _WRAPPERS,
            ("adamw", "rmsprop"),
            ("mean", "pair", "device pair"),
            (1, 3),
            ((), ((2, 1, 1e6), (3, 0, _nan))),
        )
        for synchronize in ("update", "micro")
    ]
    found = [_check_same_on_all_ranks(runs) for runs in zip(*run(train_all, cases), strict=True)]
    for case, one, other in zip(cases[::2], found[::2], found[1::2], strict=True):
        expected = train_in_one_process(case)
        assert one.counts == other.counts
        _check_weights(one, other, 2e-4)
        if one.counts == expected.counts:
            _check_weights(one, expected, 5e-3)
        else:  # a scale that is still too large skips more
            assert one.counts[-1][1] > expected.counts[-1][1]


def test_fp16_collectives_do_not_overflow() -> None:
    """Sums too large for fp16 do not overflow, because the collective gets values as small as means."""
    cases = [
        Case(wrapper, "adamw", loss, accumulation, 0.1, synchronize=synchronize, growth=growth)
        for wrapper, loss, synchronize, (accumulation, growth) in product(
            ("ddp by fp16", "fsdp by fp16"),
            ("pair", "device pair"),
            ("update", "micro"),
            ((1, 1e6), (3, 1e2)),
        )
    ]
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        found, expected = _check_same_on_all_ranks(runs), train_in_one_process(case)
        assert found.counts == expected.counts
        _check_weights(found, expected, 5e-3)


def test_fp16_scale_settles_with_growing_weights() -> None:
    """Sums are divided by the first weight, so the scale falls until the largest sum fits."""
    cases = [
        Case(wrapper, "adamw", loss, 3, 0.1, "fp16", updates=16, growth=10.0)
        for wrapper, loss in product(_WRAPPERS, ("pair", "device pair"))
    ]
    for runs in zip(*run(train_all, cases), strict=True):
        applied, skipped = _check_same_on_all_ranks(runs).counts[-1]
        assert skipped < applied
