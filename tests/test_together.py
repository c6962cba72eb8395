"""An update over several processes is the update of one process over all of their rows."""

from itertools import product

import numpy as np
import pytest
from support.processes import run
from support.together import Case, Run, in_words, train_all

pytestmark = pytest.mark.slow

_WRAPPERS = ("ddp", "fsdp")
_nan = float("nan")


def _check(found: Run, expected: Run) -> None:
    assert found.counts == expected.counts
    assert found.rates == expected.rates
    np.testing.assert_allclose(found.losses, expected.losses, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(found.norms, expected.norms, atol=1e-6, rtol=1e-5)
    for one, other in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def _same_everywhere(runs: list[Run]) -> Run:
    first, *others = runs
    for other in others:
        assert repr(other[:-1]) == repr(first[:-1])
        for one, weight in zip(first.weights, other.weights, strict=True):
            assert np.array_equal(one, weight)
    return first


def test_as_one_process() -> None:
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
    for case, *runs in zip(cases, *run(train_all, cases), strict=True):
        _check(_same_everywhere(runs), in_words(case))
