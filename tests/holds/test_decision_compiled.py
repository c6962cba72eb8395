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
