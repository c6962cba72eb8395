"""Decisions of hold rules in NumPy and torch against an oracle written from their documentation."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.hold_cases import SIZE, metrics, rules
from support.holds.hold_oracle import clocks

from plateau_jax import HoldBelow, HoldUntilFlat
from plateau_jax.holds.decision import HOST, decide, initial_state
from plateau_jax.validation import checks

starts = st.sets(st.integers(0, 20), max_size=8)


def run(xp, given_rules, flat_starts, given_metrics, to=lambda value: value):
    """Return the clock of each update and the clock after the last, by the product's decisions."""
    states = tuple(type(state)(*map(to, state)) for state in map(initial_state, given_rules))
    clock, history = 0, [0]
    with np.errstate(all="ignore"):
        for metric in given_metrics:
            flat = to(np.bool_(clock in flat_starts))
            states, held = decide(xp, given_rules, states, flat, to(checks.metric("metric", metric)))
            clock += not held
            history.append(clock)
    return history


@examples(300)
@given(rules, starts, metrics(SIZE))
def test_host_decision_matches_oracle(given_rules, flat_starts, given_metrics):
    assert run(HOST, given_rules, flat_starts, given_metrics) == clocks(
        given_rules, flat_starts, given_metrics
    )


@examples(100)
@given(rules, starts, st.lists(metrics(SIZE), min_size=3, max_size=3))
def test_numpy_decision_matches_oracle(given_rules, flat_starts, columns):
    # Several runs at once, one per array element.
    states = tuple(
        type(state)(*(np.full(3, value) for value in state)) for state in map(initial_state, given_rules)
    )
    dtypes = [[value.dtype for value in state] for state in states]
    clock, history = np.zeros(3, int), [[0, 0, 0]]
    with np.errstate(all="ignore"):
        for metric in np.transpose(columns):
            flat = np.isin(clock, list(flat_starts))
            states, held = decide(np, given_rules, states, flat, metric)
            clock = clock + ~held
            history.append(clock.tolist())
    assert [[value.dtype for value in state] for state in states] == dtypes
    wanted = [clocks(given_rules, flat_starts, column) for column in columns]
    assert np.transpose(history).tolist() == wanted


@examples(40)
@given(rules, starts, metrics(SIZE))
def test_torch_decision_matches_oracle(given_rules, flat_starts, given_metrics):
    actual = run(torch, given_rules, flat_starts, given_metrics, torch.as_tensor)
    assert actual == clocks(given_rules, flat_starts, given_metrics)


@given(rules)
def test_decision_on_meta_tensors_keeps_dtypes(given_rules):
    """Tensors of the meta device have no values."""
    with torch.device("meta"):
        states = tuple(
            type(state)(*(torch.empty((), dtype=torch.as_tensor(value).dtype) for value in state))
            for state in map(initial_state, given_rules)
        )
        after, held = decide(torch, given_rules, states, torch.ones((), dtype=torch.bool), torch.ones(()))
    assert held.dtype == torch.bool
    for state, first in zip(after, states, strict=True):
        assert type(state) is type(first)
        assert [(value.dtype, value.shape) for value in state] == [(value.dtype, ()) for value in first]


def clocks_of(rule, flat_starts, *given_metrics):
    """Return the product's clocks after checking them against the oracle."""
    given_rules = rule if isinstance(rule, list) else [rule]
    actual = run(HOST, given_rules, flat_starts, given_metrics)
    assert actual == clocks(given_rules, flat_starts, given_metrics)
    return actual


@given(rules, metrics(SIZE))
def test_nothing_is_counted_away_from_flat_starts(given_rules, given_metrics):
    # Other rules may hold the clock there, and a run may resume under a curve with a flat part there.
    states = tuple(map(initial_state, given_rules))
    with np.errstate(all="ignore"):
        for metric in given_metrics:
            states, _ = decide(HOST, given_rules, states, False, metric)
            for rule, state in zip(given_rules, states, strict=True):
                if isinstance(rule, HoldUntilFlat):
                    assert state[:3] == initial_state(rule)[:3]


NAN, INF, FALLING = float("nan"), float("inf"), [9, 8, 7, 6, 5, 4, 3, 2]
LATE, MEANS = HoldUntilFlat(2, limit=100), HoldUntilFlat(1, every=2, limit=100)
TWO_VALUES, BELOW = HoldBelow([(0.5, 2), (0.2, 3)]), HoldBelow(0.5, 5)


@pytest.mark.parametrize(
    ("rule", "flat_starts", "given_metrics", "wanted"),
    [
        # At step 2 the first reading always improves; the next two do not.
        (LATE, {2}, [0, 0, 1, 1, 1, 0, 0], [0, 1, 2, 2, 2, 3, 4, 5]),
        # A reading that improves restarts the count.
        (LATE, {2}, [0, 0, 1, 1, 0.9, 1, 1, 1], [0, 1, 2, 2, 2, 2, 2, 3, 4]),
        # The best reading of the first part does not count in the second.
        (HoldUntilFlat(1, limit=100), {0, 2}, [0, 0, 5, 5, 4, 5, 5], [0, 0, 1, 2, 2, 2, 3, 4]),
        # The update at the limit advances the clock.
        (HoldUntilFlat(1, limit=3), {2}, FALLING, [0, 1, 2, 2, 2, 3, 4, 5, 6]),
        (HoldUntilFlat(1, limit=1), {2}, FALLING, list(range(9))),
        # A metric that is not finite counts for the limit alone.
        (HoldUntilFlat(1, limit=4), {0}, [NAN, INF, -INF, NAN, NAN], [0, 0, 0, 0, 1, 2]),
        (HoldUntilFlat(1, limit=9), {0}, [1, NAN, 1e39, 1, 1], [0, 0, 0, 0, 1, 2]),
        (HoldBelow(0.5, 2), set(), [-INF, NAN, 0.5, 9, 9], [0, 1, 2, 2, 2, 3]),
        # Means count from the start of the hold: 4 and 2, then 2 and 4. The 0 of step 0 is not included.
        (MEANS, {1}, [0, 4, 2, 2, 4, 0], [0, 1, 1, 1, 1, 2, 3]),
        (MEANS, {1}, [0, 4, NAN, 2, 2, 4, 0], [0, 1, 1, 1, 1, 1, 2, 3]),
        # Or from the start of the run.
        (HoldBelow(3, 1, every=2), {1}, [9, 3, 3, 3, 3, 3], [0, 1, 2, 3, 3, 4, 5]),
        # A value holds from the update that reached it.
        (HoldBelow(0.5, 2), set(), [0.9, 0.5, 0.1, 0.1, 0.1], [0, 1, 1, 1, 2, 3]),
        # Each value is reached once, and steps add up.
        (TWO_VALUES, set(), [0.1] * 7, [0, 0, 0, 0, 0, 0, 1, 2]),
        (TWO_VALUES, set(), [0.5, 0.2, *[0.1] * 5], [0, 0, 0, 0, 0, 0, 1, 2]),
        (TWO_VALUES, set(), [0.5, 0.9, 0.9, 0.2, *[0.5] * 4], [0, 0, 0, 1, 1, 1, 1, 2, 3]),
        # The part at 1 is released after two updates and not held again while the other rule still holds.
        ([HoldUntilFlat(9, limit=2), BELOW], {1}, [1, *[0] * 7], [0, 1, 1, 1, 1, 1, 1, 2, 3]),
        # The other rule's updates are used up while the part is held.
        ([HoldUntilFlat(9, limit=7), BELOW], {1}, [1, *[0] * 8], [0, 1, 1, 1, 1, 1, 1, 1, 2, 3]),
    ],
)
def test_clocks_of_examples(rule, flat_starts, given_metrics, wanted):
    assert clocks_of(rule, flat_starts, *given_metrics) == wanted


@pytest.mark.parametrize(
    ("mode", "first", "border"),
    [
        ("rel", 2.0, np.float32(2) * np.float32(1 - 0.3)),
        ("abs", 2.0, np.float32(2) - np.float32(0.3)),
        ("abs", -2.0, np.float32(-2) - np.float32(0.3)),
        # The threshold lies above `first`, which is why "rel" needs metrics that are never negative.
        ("rel", -2.0, np.float32(-2) * np.float32(1 - 0.3)),
    ],
)
def test_reading_improves_below_float32_threshold(mode, first, border):
    rule = HoldUntilFlat(1, threshold=0.3, threshold_mode=mode, limit=100)
    below_it = np.nextafter(border, np.float32(-9))
    assert clocks_of(rule, {0}, first, border) == [0, 0, 1]
    assert clocks_of(rule, {0}, first, below_it) == [0, 0, 0]


def test_metric_is_rounded_first():
    border = np.float32(2) - np.float32(0.3)
    rule = HoldUntilFlat(1, threshold=0.3, threshold_mode="abs", limit=100)
    assert clocks_of(rule, {0}, 2.0, float(border) - 1e-12) == [0, 0, 1]
    assert clocks_of(HoldBelow(0.1, 1), set(), 0.1 + 1e-12) == [0, 0]
