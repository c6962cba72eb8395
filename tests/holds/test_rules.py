"""Hold rules as values: equality, hashes, copies and dicts; and the metrics that they read."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.holds.hold_cases import below, until_flat

from plateau_jax import HoldBelow, HoldUntilFlat, PlateauCurve
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
