"""Hold rules as values, and their decisions in NumPy, torch and JAX against an oracle of their documents."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.examples import examples
from support.holds.hold_cases import SIZE, below, metrics, rules, until_flat
from support.holds.hold_oracle import clocks
from support.jax.jax_cases import assert_equal_bits, x64_both_ways

from plateau_jax import HoldBelow, HoldUntilFlat, PlateauCurve
from plateau_jax.holds.decision import HOST, decide, initial_state
from plateau_jax.holds.rules import check_rules
from plateau_jax.validation import checks


@given(st.one_of(until_flat, below))
def test_rule_is_frozen_and_hashable(rule):
    again = eval(repr(rule))
    assert again == rule
    assert hash(again) == hash(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule
    limited = {"limit": 99} if isinstance(rule, HoldUntilFlat) else {}
    assert replace(rule, every=7, **limited) != rule
    written = rule.to_dict()
    assert json.loads(json.dumps(written)) == written
    kinds = {"hold_until_flat": HoldUntilFlat, "hold_below": HoldBelow}
    assert kinds[written.pop("kind")](**written) == rule
    with pytest.raises(FrozenInstanceError):
        rule.every = 2


def test_arguments_become_plain_numbers():
    rule = HoldUntilFlat(np.int64(3), threshold=np.float32(0.1), every=np.int32(9), limit=np.uint8(9))
    assert repr(rule) == repr(HoldUntilFlat(3, threshold=0.1, every=9, limit=9))
    pairs = HoldBelow(np.array([[3, 4], [1, 2]]))
    assert repr(pairs) == repr(HoldBelow([(3, 4), [1, 2]])) == repr(HoldBelow(((3, 4), (1, 2))))
    assert HoldBelow([(0.5, 3)]) == HoldBelow(0.5, 3) == HoldBelow(np.float32(0.5), 3)


def test_check_rules_returns_a_tuple():
    until, other = HoldUntilFlat(2, limit=9), HoldBelow(0.5, 3)
    curve, falling = PlateauCurve(10, plateaus=[(50, 20)]), PlateauCurve(10, plateaus=[(50, 0)])
    assert check_rules(None, falling) == ()
    assert check_rules(until, curve) == (until,)
    assert check_rules([until, other], curve) == check_rules((until, other), curve) == (until, other)
    assert check_rules(other, falling) == (other,)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.1, np.float32(0.1)),
        (2**24 + 1, np.float32(2**24)),
        # Through a double it would be rounded twice, and down.
        (2**62 + 2**38 + 1, np.float32(2**62 + 2**39)),
        (np.float64(-0.3), np.float32(-0.3)),
        (np.array(0.3), np.float32(0.3)),
        (np.float16(0.3), np.float32(np.float16(0.3))),
        (np.uint64(2**64 - 1), np.float32(2**64)),
        (torch.tensor(0.3, dtype=torch.float64), np.float32(0.3)),
        (1e39, np.float32(np.inf)),
        (-1e300, np.float32(-np.inf)),
        (float("nan"), np.float32(np.nan)),
    ],
    ids=str,
)
def test_metric_is_rounded_to_nearest_float32(value, wanted):
    actual = checks.metric("metric", value)
    assert type(actual) is np.float32
    np.testing.assert_array_equal(actual, wanted)


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


# In a larger program, in which XLA might contract a product and a sum.

LANES = 4096
SHARE = np.float32(0.37)


def unrolled(xp, rule, first, plain, last):
    """Return (states, held) after each row of metrics, one per lane; `first` and `last` become products.

    The initial state is a constant of the program.
    """
    states = (type(initial_state(rule))(*(np.full(LANES, value) for value in initial_state(rule))),)
    history = []
    for metric in [*(row * SHARE for row in first), *plain, *(row * SHARE for row in last)]:
        states, held = decide(xp, (rule,), states, np.ones(LANES, bool), metric)
        history.append((states, held))
    return history


@pytest.mark.slow
@x64_both_ways
@pytest.mark.parametrize(
    "rule",
    [
        HoldUntilFlat(2, threshold=0.1, limit=9),
        HoldUntilFlat(2, threshold=0.1, every=3, limit=12),
        HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", limit=9),
        HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", every=3, limit=12),
        HoldBelow([(0.3, 2), (0.25, 4)]),
        HoldBelow([(0.3, 2), (0.25, 4)], every=3),
    ],
    ids=repr,
)
def test_compiled_decision_matches_numpy_bits(x64, rule):
    random = np.random.default_rng(1)
    first, last = random.uniform(0.5, 1, (2, 3, LANES)).astype(np.float32)
    first, plain = first[: rule.every], []
    if isinstance(rule, HoldUntilFlat):
        # The first reading, made of products, is the best; the second lies at the threshold or next to it.
        (state,), _ = unrolled(np, rule, first, [], [])[-1]
        if rule.threshold_mode == "rel":
            border = state.best * np.float32(1 - rule.threshold)
        else:
            border = state.best - np.float32(rule.threshold)
        towards = random.choice(np.array([-9, 9], np.float32), LANES)
        border = np.where(np.arange(LANES) % 3, border, np.nextafter(border, towards))
        plain = [border] * rule.every
        (state,), _ = unrolled(np, rule, first, plain, [])[-1]
        assert 0.01 < np.mean(state.stale == 0) < 0.99
    wanted = unrolled(np, rule, first, plain, last)
    with jax.enable_x64(x64):
        actual = jax.jit(partial(unrolled, jnp, rule))(first, plain, last)
    jax.tree.map(assert_equal_bits, actual, wanted)
