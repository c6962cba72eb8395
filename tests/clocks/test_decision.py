"""The arguments of clocks, and the decisions of hold rules against an oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.clocks.holds import SIZE, curve_steps_with_rules, metrics, rules
from support.clocks.rules import ONE_OF_EACH
from support.examples import examples

from plateau_jax import CurveScheduler, DataClock, HoldUntilFlat, PlateauCurve
from plateau_jax.arguments import checks
from plateau_jax.clocks.decision import decide
from plateau_jax.clocks.rules import HOLD_RULE_CLASSES


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


@examples(100)
@given(rules, starts, metrics(SIZE))
def test_decision_matches_oracle(drawn_rules, flat_starts, drawn_metrics):
    """Host, torch and JAX decide alike: `test_definition` and `test_compiled_decision`."""
    states = tuple(rule._initial_state() for rule in drawn_rules)
    curve_steps = [0]
    for metric in drawn_metrics:
        curve_step = curve_steps[-1]
        starts_plateau = np.bool_(curve_step in flat_starts)
        rounded = checks.metric("metric", metric)
        with np.errstate(all="ignore"):
            states, is_held = decide(np, drawn_rules, states, starts_plateau, rounded)
        if not is_held:
            curve_step += 1
        curve_steps.append(curve_step)
    assert curve_steps == curve_steps_with_rules(drawn_rules, flat_starts, drawn_metrics)
