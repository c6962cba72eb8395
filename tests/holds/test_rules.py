"""Hold rules as values: equality, hashes, copies, dicts, and checks of their arguments."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.holds.hold_cases import below, until_flat
from support.rejections import rejects

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
    kind, arguments = (written := rule.to_dict())["kind"], {**written}
    assert json.loads(json.dumps(written)) == written
    del arguments["kind"]
    assert {"hold_until_flat": HoldUntilFlat, "hold_below": HoldBelow}[kind](**arguments) == rule
    with pytest.raises(FrozenInstanceError):
        rule.every = 2


def test_limit_allows_at_least_one_reading():
    assert HoldUntilFlat(1, every=9, limit=9).every == 9


def test_arguments_become_plain_numbers():
    rule = HoldUntilFlat(np.int64(3), threshold=np.float32(0.1), every=np.int32(2), limit=np.uint8(9))
    assert repr(rule) == repr(HoldUntilFlat(3, threshold=0.1, every=2, limit=9))
    pairs = HoldBelow(np.array([[3, 4], [1, 2]]))
    assert repr(pairs) == repr(HoldBelow([(3, 4), [1, 2]])) == repr(HoldBelow(((3, 4), (1, 2))))
    assert HoldBelow([(0.5, 3)]) == HoldBelow(0.5, 3) == HoldBelow(np.float32(0.5), 3)


@pytest.mark.parametrize(
    ("kind", "changes", "parts"),
    [
        (ValueError, {"patience": 0}, ["patience = 0"]),
        (TypeError, {"patience": 1.0}, ["patience = 1.0"]),
        (TypeError, {"patience": True}, ["patience = True"]),
        (ValueError, {"patience": 2**31}, ["patience = 2147483648"]),
        (ValueError, {"limit": 0}, ["limit = 0"]),
        (ValueError, {"limit": 2**31}, ["limit = 2147483648"]),
        (TypeError, {"limit": None}, ["limit = None"]),
        (ValueError, {"every": 0}, ["every = 0"]),
        (ValueError, {"every": 10}, ["every = 10 must be at most limit = 9", "no reading"]),
        (ValueError, {"every": 2, "limit": 1}, ["every = 2 must be at most limit = 1"]),
        (ValueError, {"threshold": -1e-9}, ["threshold = -1e-09"]),
        (ValueError, {"threshold": 1.5}, ["threshold = 1.5", "rel"]),
        (ValueError, {"threshold": float("nan")}, ["threshold = nan"]),
        (ValueError, {"threshold": float("inf"), "threshold_mode": "abs"}, ["threshold = inf"]),
        (ValueError, {"threshold": 1e39, "threshold_mode": "abs"}, ["threshold = 1e+39", "float32"]),
        (TypeError, {"threshold": "0.1"}, ["threshold = '0.1'"]),
        (ValueError, {"threshold_mode": "relative"}, ["threshold_mode = 'relative'", "'rel'", "'abs'"]),
    ],
    ids=str,
)
def test_hold_until_flat_rejects_bad_arguments(kind, changes, parts):
    rejects(kind, *parts, call=HoldUntilFlat, **{"patience": 2, "limit": 9, **changes})


@pytest.mark.parametrize(
    ("kind", "arguments", "parts"),
    [
        (TypeError, {"value": 0.5}, ["value = 0.5", "steps"]),
        (TypeError, {"value": None, "steps": 3}, ["value = None"]),
        (TypeError, {"value": "0.5"}, ["value = '0.5'", "pairs"]),
        (TypeError, {"value": [(0.5, 3)], "steps": 3}, ["value = [(0.5, 3)]", "number"]),
        (TypeError, {"value": [0.5, 3]}, ["value[0] = 0.5", "pair (value, steps)"]),
        (TypeError, {"value": {0.5: 3}}, ["value", "pairs (value, steps)"]),
        (ValueError, {"value": []}, ["value", "(value, steps)"]),
        (ValueError, {"value": float("nan"), "steps": 3}, ["value = nan"]),
        (ValueError, {"value": -1e39, "steps": 3}, ["value = -1e+39", "float32"]),
        (ValueError, {"value": 0.5, "steps": 0}, ["steps = 0"]),
        (TypeError, {"value": 0.5, "steps": 3.0}, ["steps = 3.0"]),
        (ValueError, {"value": 0.5, "steps": 3, "every": 0}, ["every = 0"]),
        (ValueError, {"value": [(0.5, 3), (0.2, -1)]}, ["value[1].steps = -1"]),
        (ValueError, {"value": [(0.5, 3), (0.5, 3)]}, ["falling", "0.5 follows 0.5"]),
        (ValueError, {"value": [(0.5, 3), (0.2, 3), (0.3, 3)]}, ["falling", "0.3 follows 0.2"]),
        (ValueError, {"value": [(0.5, 2**31 - 1), (0.2, 1)]}, ["the sum of all steps = 2147483648"]),
    ],
    ids=str,
)
def test_hold_below_rejects_bad_arguments(kind, arguments, parts):
    rejects(kind, *parts, call=HoldBelow, **arguments)


def test_check_rules_accepts_rules_and_rejects_others():
    until, other = HoldUntilFlat(2, limit=9), HoldBelow(0.5, 3)
    curve, falling = PlateauCurve(10, plateaus=[(50, 20)]), PlateauCurve(10, plateaus=[(50, 0)])
    assert check_rules(None, falling) == ()
    assert check_rules(until, curve) == (until,)
    assert check_rules([until, other], curve) == check_rules((until, other), curve) == (until, other)
    assert check_rules(other, falling) == (other,)
    rejects(ValueError, "HoldUntilFlat", "flat part", "(50, 0)", call=check_rules, hold=until, curve=falling)
    rejects(ValueError, "flat part", call=check_rules, hold=[other, until], curve=falling)
    rejects(ValueError, "hold", "None", call=check_rules, hold=[], curve=curve)
    for wrong in (3, "flat", HoldBelow, [other, 3], {"kind": "hold_below"}):
        rejects(TypeError, f"hold = {wrong!r}", call=check_rules, hold=wrong, curve=curve)


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


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "0.5",
        1j,
        [0.5],
        np.zeros(1),
        np.zeros((), "i4,i4"),
        np.ones((), [("loss", "f4")]),
        10**400,
        {},
        [[1], [1, 2]],
        SimpleNamespace(),
    ],
    ids=str,
)
def test_bad_metric_is_rejected(value):
    rejects(TypeError, "loss = ", "must be a real scalar", call=checks.metric, name="loss", value=value)
