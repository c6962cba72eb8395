"""Clocks as values; decisions of hold rules in NumPy and torch against an oracle."""

import json
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import SIZE, curve_steps_with_rules, metrics, rules
from support.clocks.rules import ONE_OF_EACH, any_rule
from support.examples import corners, examples

from plateau_jax import CurveScheduler, DataClock, HoldUntilFlat, PlateauCurve
from plateau_jax.arguments import checks
from plateau_jax.clocks.decision import HOST, decide
from plateau_jax.clocks.rules import HOLD_RULE_CLASSES

data_clocks = st.builds(DataClock, corners(1, 2**62), count=st.none() | corners(1, 2**62 - 1))
any_clock = st.one_of(any_rule, data_clocks)


@given(any_clock)
def test_dictionary_of_a_clock_survives_json(clock):
    written = json.loads(json.dumps(clock.to_dict()))
    assert written == clock.to_dict()
    kind = written.pop("kind")
    (rebuilt,) = [
        known(**written) for known in (DataClock, *HOLD_RULE_CLASSES) if known._kind == kind
    ]
    assert rebuilt == clock


@pytest.mark.parametrize("clock", [DataClock(8), *ONE_OF_EACH], ids=repr)
def test_clock_is_frozen(clock):
    for field in fields(clock):
        with pytest.raises(FrozenInstanceError):
            setattr(clock, field.name, 7.5)


def test_samples_have_every_rule():
    assert {type(rule) for rule in ONE_OF_EACH} == set(HOLD_RULE_CLASSES)


def test_arguments_become_plain_numbers():
    rule = HoldUntilFlat(
        np.int64(3),
        threshold=np.float32(0.1),
        every=np.int32(9),
        limit=np.uint8(9),
    )
    assert repr(rule) == repr(HoldUntilFlat(3, threshold=0.1, every=9, limit=9))
    clock = DataClock(np.uint8(64), count=np.array(512))
    assert repr(clock) == "DataClock(unit=64, count=512)"


def test_absolute_threshold_may_be_above_one():
    """A perplexity of 8 is 2 below one of 10, and does not improve it by 2.5."""
    rule = HoldUntilFlat(1, threshold=2.5, threshold_mode="abs", limit=9)
    for perplexity, curve_step in [(7, 0), (8, 1)]:
        scheduler = CurveScheduler(PlateauCurve(9, plateaus=[(0, 20)]), 0.5, clock=rule)
        scheduler.step(metric=10.0)
        scheduler.step(metric=perplexity)
        assert scheduler.curve_step == curve_step


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, np.float32(0.1)),
        # Through a double it would be rounded twice, and down.
        (2**62 + 2**38 + 1, np.float32(2**62 + 2**39)),
        (np.float16(0.3), np.float32(np.float16(0.3))),
        (torch.tensor(0.3, dtype=torch.float64), np.float32(0.3)),
        (1e39, np.float32(np.inf)),
    ],
    ids=str,
)
def test_metric_is_rounded_to_nearest_float32(value, expected):
    metric = checks.metric("metric", value)
    assert type(metric) is np.float32
    np.testing.assert_array_equal(metric, expected)


starts = st.sets(st.integers(0, 20), max_size=8)


def curve_steps_by_product(xp, convert, used_rules, flat_starts, used_metrics):
    """Return the curve step of each update, and that after the last, by the product's decisions.

    `convert` makes an array of a number.
    """
    states = []
    for rule in used_rules:
        state = rule._initial_state()
        states.append(type(state)(*map(convert, state)))
    states = tuple(states)
    curve_step = 0
    history = [curve_step]
    for metric in used_metrics:
        starts_plateau = convert(np.bool_(curve_step in flat_starts))
        rounded = convert(checks.metric("metric", metric))
        with np.errstate(all="ignore"):
            states, is_held = decide(xp, used_rules, states, starts_plateau, rounded)
        if not is_held:
            curve_step += 1
        history.append(curve_step)
    return history


@pytest.mark.parametrize(
    ("xp", "convert"),
    [(HOST, lambda number: number), (np, np.asarray), (torch, torch.as_tensor)],
    ids=["host", "numpy", "torch"],
)
@examples(100)
@given(rules, starts, metrics(SIZE))
def test_decision_matches_oracle(xp, convert, drawn_rules, flat_starts, drawn_metrics):
    expected = curve_steps_with_rules(drawn_rules, flat_starts, drawn_metrics)
    assert curve_steps_by_product(xp, convert, drawn_rules, flat_starts, drawn_metrics) == expected
