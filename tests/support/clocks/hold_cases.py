"""Hold rules and awkward metrics: strategies that draw them, and fixed ones."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.clocks.hold_oracle import clocks
from support.curves.strategies import words
from support.jax.jax_cases import product

from plateau_jax import HoldBelow, HoldUntilFlat, StagedCurve

SIZE = 48
PEAK = 0.3
STAIRS = StagedCurve([(2, 1), (3,), (2, 0.7), (1,), (0, 0.5), (2,), (4, 0.9), (3,), (5, 0)])
"""A warmup, and flat parts that begin at `STARTS`; one follows a jump down, another a rise."""
STARTS = {2, 7, 8, 14}

UNTIL = HoldUntilFlat(2, threshold=0.1, every=2, limit=9)
BELOW = HoldBelow([(0.7, 3), (0.1, 6)], every=3)
WORST = np.random.default_rng(7).choice(
    np.array([2, 1, 0.7, 0.1, 0.05, -0.5, 0.63, np.nan, np.inf, 3e38], np.float32), (6, SIZE)
)
"""The metrics of six runs."""

VALUES = (2.0, 1.5, 1.0, 0.7, 0.25, 0.1, 0.0, -0.5, -2.0)
"""Decreasing values; drawn metrics equal one of them or differ from it as little as possible."""

_SMALL = np.float32(1e-30)
_thresholds = st.sampled_from((0, 1e-4, 0.1, 0.3, 1 / 3, 0.5, 1, 1e-7))
_every = st.sampled_from((1, 1, 2, 3, 5))


def _until_flat(every: int, more: int, **arguments: Any) -> HoldUntilFlat:
    return HoldUntilFlat(every=every, limit=min(every + more, 2**31 - 1), **arguments)


until_flat = st.builds(
    _until_flat,
    _every,
    st.one_of(st.integers(0, 11), st.just(2**31 - 1)),
    patience=st.integers(1, 4),
    threshold=_thresholds,
    threshold_mode=st.sampled_from(("rel", "abs")),
)
below = st.builds(
    HoldBelow,
    st.lists(st.tuples(st.sampled_from(VALUES), st.integers(1, 9)), min_size=1, max_size=4).map(
        lambda pairs: sorted(dict(pairs).items(), reverse=True)
    ),
    every=_every,
)
rules = st.lists(st.one_of(until_flat, below), min_size=1, max_size=3)


def metrics(count: int) -> st.SearchStrategy[list[Any]]:
    """Draw `count` float32; many are equal, at a rule's threshold or next to it, or not finite."""
    return words(count).map(lambda drawn: [_metric(word) for word in drawn])


def _metric(word: int) -> Any:
    rest, kind = divmod(word, 16)
    value = np.float32(VALUES[rest % len(VALUES)])
    rest //= len(VALUES)
    if kind == 0:
        odd = np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.finfo(np.float32).min, -0.0
        return np.float32(odd[rest % len(odd)])
    if kind < 8:
        return value
    if kind < 12:  # a threshold away from it, or nearly so
        share = (1e-4, 0.1, 0.3, 1 / 3, 0.5)[rest % 5]
        near = value * np.float32(1 - share) if kind < 10 else value - np.float32(share)
        near = np.nextafter(near, near + np.float32((-1, 0, 1)[rest // 5 % 3]))
        # Not so small that XLA would flush it to zero.
        return near if near == 0 or abs(near) > _SMALL else np.copysign(_SMALL, near)
    return np.float32(rest % 2**24 / 2**23 - 0.5)


def rates_by_words(given_rules: Any, given_metrics: Any) -> Any:
    """Return the learning rates of `STAIRS` at the clocks of the rules' oracle."""
    return product(STAIRS, PEAK, np.array(clocks(given_rules, STARTS, given_metrics)[:-1]), False)
