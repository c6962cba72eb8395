"""Hold rules decide alike in a larger program, in which XLA might contract a product and a sum."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.clocks.rules import BELOW_SAMPLES, UNTIL_FLAT_SAMPLES
from support.jax.jax_cases import assert_equal_bits, x64_both_ways

from plateau_jax.clocks.decision import decide

pytestmark = pytest.mark.slow

LANES = 4096
FACTOR = np.float32(0.37)


def initial_state_of_lanes(rule):
    state = rule._initial_state()
    return type(state)(*(np.full(LANES, value) for value in state))


def unrolled(xp, rule, first, plain, last):
    """Return (states, held) after each list of metrics, one per lane.

    The metrics of `first` and `last` become products, and the initial state is a constant of the
    program.
    """
    states = (initial_state_of_lanes(rule),)
    starts_plateau = np.ones(LANES, bool)
    products = [[loss * FACTOR for loss in losses] for losses in (first, last)]
    history = []
    for metric in [*products[0], *plain, *products[1]]:
        states, held = decide(xp, (rule,), states, starts_plateau, metric)
        history.append((states, held))
    return history


def losses(random, updates):
    """Draw a loss per update and lane; the products lie between 0.185 and 0.37."""
    return random.uniform(0.5, 1, (updates, LANES)).astype(np.float32)


def check_compiled(x64, rule, first, plain, last):
    expected = unrolled(np, rule, first, plain, last)
    with jax.enable_x64(x64):
        actual = jax.jit(partial(unrolled, jnp, rule))(first, plain, last)
    jax.tree.map(assert_equal_bits, actual, expected)


# The next test compiles `HoldUntilFlat` with such products too.
@x64_both_ways
@pytest.mark.parametrize("rule", BELOW_SAMPLES, ids=repr)
def test_compiled_decision_matches_numpy_bits(x64, rule):
    random = np.random.default_rng(1)
    check_compiled(x64, rule, losses(random, 3), [], losses(random, 3))


def metrics_next_to_the_threshold(rule, state, random):
    """Return a metric per lane: two of three at the threshold, and one on a side of it."""
    if rule.threshold_mode == "rel":
        threshold = state.best * np.float32(1 - rule.threshold)
    else:
        threshold = state.best - np.float32(rule.threshold)
    directions = random.choice(np.array([-9, 9], np.float32), LANES)
    next_to_it = np.nextafter(threshold, directions)
    return np.where(np.arange(LANES) % 3, threshold, next_to_it)


@x64_both_ways
@pytest.mark.parametrize("rule", UNTIL_FLAT_SAMPLES, ids=repr)
def test_compiled_threshold_matches_numpy_bits(x64, rule):
    """The first reading, made of products, is the best; the second is next to its threshold."""
    random = np.random.default_rng(1)
    first = losses(random, rule.every)
    (state,), _ = unrolled(np, rule, first, [], [])[-1]
    plain = [metrics_next_to_the_threshold(rule, state, random)] * rule.every
    (state,), _ = unrolled(np, rule, first, plain, [])[-1]
    assert 0.01 < np.mean(state.stale == 0) < 0.99
    check_compiled(x64, rule, first, plain, losses(random, 3))
