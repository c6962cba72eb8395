"""The errors of `scale_by_curve` name the argument or the state that is wrong."""

import math
from functools import cache, partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.curves.scaled import OF_UNIT_8, WRONG_UNIT, WRONG_UNITS
from support.holds.hold_cases import BELOW, PEAK, STAIRS, UNTIL

from plateau_jax import StagedCurve, scale_by_curve

MOST = 2**30
ONE = jnp.ones(())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"curve": 3}, TypeError, "curve = 3"),
        ({"peak_value": -1.0}, ValueError, "peak_value = -1.0"),
        ({"hold": 3}, TypeError, "hold = 3"),
        ({"hold": []}, ValueError, "hold"),
        ({"curve": StagedCurve([(5, 1)]), "hold": UNTIL}, ValueError, "needs a flat part"),
        ({"hold": BELOW, "unit": 8}, ValueError, "^hold = HoldBelow.* must not be combined with unit = 8"),
        ({"unit": 0}, ValueError, r"unit = 0 must lie in 1 … 2\*\*30"),
        ({"unit": -8}, ValueError, "unit = -8"),
        ({"unit": MOST + 1}, ValueError, "unit = 1073741825"),
        ({"unit": True}, TypeError, "unit = True must be an integer"),
        ({"unit": 8.0}, TypeError, "unit = 8.0 must be an integer"),
        ({"unit": math.nan}, TypeError, "unit = nan must be an integer"),
        ({"unit": "8"}, TypeError, "unit = '8' must be an integer"),
        *(
            ({"curve": curve, "unit": unit}, ValueError, WRONG_UNIT)
            for curve in OF_UNIT_8
            for unit in WRONG_UNITS
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_rejected(arguments, error, message):
    with pytest.raises(error, match=message):
        scale_by_curve(**{"curve": STAIRS, "peak_value": PEAK, **arguments})


HELD, COUNTED, PLAIN = {"hold": UNTIL}, {"unit": 8}, {}
OPTIONS = [PLAIN, COUNTED, *({"hold": hold} for hold in (UNTIL, BELOW, [UNTIL, BELOW], [BELOW, UNTIL]))]


@cache
def optimizer_and_state(index):
    optimizer = scale_by_curve(STAIRS, PEAK, **OPTIONS[index])
    return optimizer, optimizer.init(None)


@pytest.mark.parametrize("is_chained", [False, True])
@pytest.mark.parametrize(
    ("options", "arguments", "error", "message"),
    [
        (HELD, {}, TypeError, "value = None must be a real scalar"),
        *((HELD, {"value": value}, TypeError, "value = .* real scalar")
          for value in (np.ones(1), jnp.ones(1), True, jnp.array(True), jnp.array(1j), "0.5", {"loss": 0.5})),
        (COUNTED, {}, TypeError, "count = None must be an integer"),
        (COUNTED, {"count": 3.0}, TypeError, "count = 3.0 must be an integer"),
        *((COUNTED, {"count": count}, TypeError, "count = .* must be an integer")
          for count in (True, math.nan, np.float32(3), np.array(True), np.ones(2, int), "3")),
        *((COUNTED, {"count": count}, TypeError, "count = .* must be a single integer")
          for count in (jnp.float32(3), jnp.array(True), jnp.ones(1, int))),
        (COUNTED, {"count": -1}, ValueError, r"count = -1 must lie in 0 … 2\*\*30"),
        (COUNTED, {"count": MOST + 1}, ValueError, r"count = 1073741825 must lie in 0 … 2\*\*30"),
        *((PLAIN, {"count": count}, TypeError, r"^count = .* must be left out: .*\(\.\.\., unit=n\)")
          for count in (0, 3, -1, np.int32(3), jnp.ones((), "int32"), "three")),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_metrics_and_counts_are_rejected(options, arguments, error, message, is_chained):
    optimizer, state = optimizer_and_state(OPTIONS.index(options))
    update = optimizer.update
    if is_chained:
        state, update = (state,), optax.chain(optimizer).update
    with pytest.raises(error, match=message):
        update(ONE, state, **arguments)


@pytest.mark.parametrize(("index", "other_index"), list(permutations(range(len(OPTIONS)), 2)))
def test_state_of_a_different_clock_is_rejected(index, other_index):
    (optimizer, _), (_, state) = optimizer_and_state(index), optimizer_and_state(other_index)
    options, other = OPTIONS[index], OPTIONS[other_index]
    argument = {"count": 3} if "unit" in options else {"value": 0.5}
    message = r"^state\.hold = .* must fit the rules"
    if "unit" in options or "unit" in other:
        message = f"State, that of unit = {options.get('unit')}"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(partial(optimizer.update, **argument), ONE, state)
