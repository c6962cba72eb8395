"""A hold rule in many lanes of one program, in which XLA might contract a product and a sum."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.jax.jax_cases import assert_equal_bits

from plateau_jax.clocks.decision import decide, initial_state

LANES = 4096
_FACTOR = np.float32(0.37)


def metrics_of_lanes(random: np.random.Generator, updates: int) -> Any:
    """Draw a loss per update and lane, whose product with a factor lies between 0.185 and 0.37."""
    return random.uniform(0.5, 1, (updates, LANES)).astype(np.float32)


def states_of_lanes(
    xp: Any, rule: Any, first: Sequence[Any], plain: Sequence[Any] = (), last: Sequence[Any] = ()
) -> list[Any]:
    """Return (state, held) after each list of metrics, one per lane.

    The metrics of `first` and `last` become products, and the initial state is a constant of the
    program.
    """
    state = initial_state(rule)
    states = (type(state)(*(np.full(LANES, value) for value in state)),)
    is_flat = np.ones(LANES, bool)
    products = [loss * _FACTOR for loss in first]
    history: list[Any] = []
    for metric in [*products, *plain, *[loss * _FACTOR for loss in last]]:
        states, held = decide(xp, (rule,), states, is_flat, metric)
        history.append((states[0], held))
    return history


def assert_compiled_matches_numpy(
    rule: Any, first: Sequence[Any], plain: Sequence[Any] = (), last: Sequence[Any] = ()
) -> None:
    """Compare all states and decisions, bit by bit."""
    expected = states_of_lanes(np, rule, first, plain, last)
    compiled: Any = jax.jit(partial(states_of_lanes, jnp, rule))
    actual = compiled(first, plain, last)
    jax.tree.map(assert_equal_bits, actual, expected)
