"""Clocks as values; decisions of hold rules in NumPy, torch and JAX against an oracle of their documents."""

import json
import pickle
from dataclasses import FrozenInstanceError, is_dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import ORACLES, SIZE, any_rule, clocks, metrics, rules
from support.examples import corners, examples
from support.jax.jax_cases import assert_equal_bits, x64_both_ways

from plateau_jax import DataClock, HoldBelow, HoldUntilFlat
from plateau_jax.clocks.clock import CLOCKS
from plateau_jax.clocks.decision import HOST, decide, initial_state
from plateau_jax.clocks.known_rules import RULES
from plateau_jax.validation import checks

data_clocks = st.builds(DataClock, corners(1, 2**62), count=st.none() | corners(1, 2**62 - 1))
CHANGES = {HoldUntilFlat: {"every": 7, "limit": 99}, HoldBelow: {"every": 7}, DataClock: {"unit": 2**61 + 3}}


@given(st.one_of(any_rule, data_clocks))
def test_clock_is_frozen_and_hashable(clock):
    for again in (eval(repr(clock)), pickle.loads(pickle.dumps(clock))):
        assert (again, hash(again)) == (clock, hash(clock))
    change = CHANGES[type(clock)]
    assert replace(clock, **change) != clock
    for name in change:
        with pytest.raises(FrozenInstanceError):
            setattr(clock, name, object())
    written = clock.to_dict()
    assert json.loads(json.dumps(written)) == written
    assert CLOCKS[written.pop("kind")](**written) == clock


def test_every_rule_has_an_oracle():
    assert set(ORACLES) == set(RULES.values())


@pytest.mark.parametrize("rule", RULES.values())
def test_bases_of_a_rule_are_dataclasses(rule):
    """Otherwise jsonargparse does not build the rule from a mapping of its arguments."""
    assert all(is_dataclass(base) for base in rule.__mro__ if base is not object)


@pytest.mark.parametrize("rule", [HoldUntilFlat(3, limit=9), HoldBelow(0.5, 3)], ids=repr)
def test_pickled_state_may_name_the_decision(rule):
    """The first pickles of optax states do."""
    state = initial_state(rule)
    text = pickle.dumps(state, protocol=0)
    assert pickle.loads(text.replace(b"plateau_jax.clocks.rules", b"plateau_jax.clocks.decision")) == state


def test_arguments_become_plain_numbers():
    rule = HoldUntilFlat(np.int64(3), threshold=np.float32(0.1), every=np.int32(9), limit=np.uint8(9))
    assert repr(rule) == repr(HoldUntilFlat(3, threshold=0.1, every=9, limit=9))
    assert repr(DataClock(np.uint8(64), count=np.array(512))) == "DataClock(unit=64, count=512)"
    pairs = HoldBelow(np.array([[3, 4], [1, 2]]))
    assert repr(pairs) == repr(HoldBelow([(3, 4), [1, 2]])) == repr(HoldBelow(((3, 4), (1, 2))))
    assert HoldBelow([(0.5, 3)]) == HoldBelow(0.5, 3) == HoldBelow(np.float32(0.5), 3)


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


@pytest.mark.parametrize(("xp", "to"), [(np, np.asarray), (torch, torch.as_tensor)], ids=["numpy", "torch"])
@examples(40)
@given(rules, starts, metrics(SIZE))
def test_decision_on_arrays_matches_oracle(xp, to, given_rules, flat_starts, given_metrics):
    actual = run(xp, given_rules, flat_starts, given_metrics, to)
    assert actual == clocks(given_rules, flat_starts, given_metrics)


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
