"""The decision inside larger programs, in which XLA might contract a product and a sum."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jax.jax_cases import assert_equal_bits, x64_both_ways

from plateau_jax import HoldBelow, HoldUntilFlat
from plateau_jax.holds.decision import decide, initial_state

pytestmark = pytest.mark.slow

LANES = 4096
SHARE = np.float32(0.37)


def drawn(updates: int, seed: int):
    """Draw a row of metrics per update, with one metric per lane; each is later multiplied by `SHARE`."""
    return np.random.default_rng(seed).uniform(0.5, 1, (updates, LANES)).astype(np.float32)


def unrolled(xp, rule, products, plain):
    """Return (states, held) after each row: first the rows of products, then the plain ones.

    The initial state is a constant of the program.
    """
    states = (type(initial_state(rule))(*(np.full(LANES, value) for value in initial_state(rule))),)
    history = []
    for metric in [*(row * SHARE for row in products), *plain]:
        states, held = decide(xp, (rule,), states, np.ones(LANES, bool), metric)
        history.append((states, held))
    return history


RULES = [
    HoldUntilFlat(2, threshold=0.1, limit=9),
    HoldUntilFlat(2, threshold=0.1, every=3, limit=9),
    HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", limit=9),
    HoldUntilFlat(2, threshold=0.1, threshold_mode="abs", every=3, limit=9),
    HoldBelow([(0.3, 2), (0.25, 4)]),
    HoldBelow([(0.3, 2), (0.25, 4)], every=3),
]


@x64_both_ways
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_states_match_numpy_bits(x64, rule):
    products = drawn(9, 1)
    wanted = unrolled(np, rule, products, [])
    with jax.enable_x64(x64):
        actual = jax.jit(lambda rows: unrolled(jnp, rule, rows, []))(products)
    jax.tree.map(assert_equal_bits, actual, wanted)


@x64_both_ways
@pytest.mark.parametrize("rule", RULES[:4], ids=repr)
def test_compiled_decision_at_threshold_matches_numpy(x64, rule):
    # The first reading, made of products, is the best; the second lies at the rule's threshold or next to it.
    every = rule.every
    products = drawn(every, 2)
    (state,), _ = unrolled(np, rule, products, [])[-1]
    if rule.threshold_mode == "rel":
        border = state.best * np.float32(1 - rule.threshold)
    else:
        border = state.best - np.float32(rule.threshold)
    towards = np.random.default_rng(3).choice(np.array([-9, 9], np.float32), LANES)
    border = np.where(np.arange(LANES) % 3, border, np.nextafter(border, towards))
    plain = [border] * every
    wanted = unrolled(np, rule, products, plain)
    assert 0.01 < np.mean(wanted[-1][0][0].stale == 0) < 0.99
    with jax.enable_x64(x64):
        actual = jax.jit(partial(unrolled, jnp, rule))(products, plain)
    jax.tree.map(assert_equal_bits, actual, wanted)
