"""Hold rules: what they are, what is refused, and what they decide, in NumPy and torch."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hold_cases import below, metrics, rules, until_flat
from support.hold_oracle import clocks
from support.refusals import refuses

from plateau_jax import HoldBelow, HoldUntilFlat, PlateauCurve, checks
from plateau_jax.decision import HOST, decide, start
from plateau_jax.holds import rules_of

SIZE = 48
starts = st.sets(st.integers(0, 20), max_size=8)


def run(xp, given_rules, flat_starts, given_metrics, to=lambda value: value):
    """The clock of each update and of the next one, by the product."""
    states = tuple(type(state)(*map(to, state)) for state in map(start, given_rules))
    clock, found = 0, [0]
    with np.errstate(all="ignore"):
        for metric in given_metrics:
            flat = to(np.bool_(clock in flat_starts))
            states, held = decide(xp, given_rules, states, flat, to(checks.metric("metric", metric)))
            clock += not held
            found.append(clock)
    return found


@settings(max_examples=300)
@given(rules, starts, metrics(SIZE))
def test_on_the_host_as_in_words(given_rules, flat_starts, given_metrics):
    assert run(HOST, given_rules, flat_starts, given_metrics) == clocks(
        given_rules, flat_starts, given_metrics
    )


@settings(max_examples=100)
@given(rules, starts, st.lists(metrics(SIZE), min_size=3, max_size=3))
def test_numpys_arrays_as_in_words(given_rules, flat_starts, columns):
    # Several trainings at once, each a place of the arrays.
    states = tuple(type(state)(*(np.full(3, value) for value in state)) for state in map(start, given_rules))
    dtypes = [[value.dtype for value in state] for state in states]
    clock, found = np.zeros(3, int), [[0, 0, 0]]
    with np.errstate(all="ignore"):
        for metric in np.transpose(columns):
            flat = np.isin(clock, list(flat_starts))
            states, held = decide(np, given_rules, states, flat, metric)
            clock = clock + ~held
            found.append(clock.tolist())
    assert [[value.dtype for value in state] for state in states] == dtypes
    wanted = [clocks(given_rules, flat_starts, column) for column in columns]
    assert np.transpose(found).tolist() == wanted


@settings(max_examples=40)
@given(rules, starts, metrics(SIZE))
def test_torchs_tensors_as_in_words(given_rules, flat_starts, given_metrics):
    found = run(torch, given_rules, flat_starts, given_metrics, torch.as_tensor)
    assert found == clocks(given_rules, flat_starts, given_metrics)


@given(rules)
def test_no_value_is_read_and_all_keep_their_dtype(given_rules):
    # Tensors of the meta device have none.
    states = tuple(
        type(state)(*(torch.as_tensor(value).to("meta") for value in state))
        for state in map(start, given_rules)
    )
    flat, metric = torch.ones((), dtype=torch.bool, device="meta"), torch.ones((), device="meta")
    after, held = decide(torch, given_rules, states, flat, metric)
    assert held.dtype == torch.bool
    for state, first in zip(after, states, strict=True):
        assert type(state) is type(first)
        assert [(value.dtype, value.shape) for value in state] == [(value.dtype, ()) for value in first]


def clocks_of(rule, flat_starts, *given_metrics):
    """The product's clocks, which have to be the oracle's too."""
    given_rules = rule if isinstance(rule, list) else [rule]
    found = run(HOST, given_rules, flat_starts, given_metrics)
    assert found == clocks(given_rules, flat_starts, given_metrics)
    return found


def test_a_part_is_held_until_so_many_readings_in_a_row_do_not_improve():
    rule = HoldUntilFlat(2, limit=100)
    # At step 2 the first reading improves, whatever came before it; then two don't.
    assert clocks_of(rule, {2}, 0, 0, 1, 1, 1, 0, 0) == [0, 1, 2, 2, 2, 3, 4, 5]
    # One that does improve begins the row anew.
    assert clocks_of(rule, {2}, 0, 0, 1, 1, 0.9, 1, 1, 1) == [0, 1, 2, 2, 2, 2, 2, 3, 4]


def test_each_part_is_held_for_itself():
    rule = HoldUntilFlat(1, limit=100)
    # The best of the first part is not the second one's.
    assert clocks_of(rule, {0, 2}, 0, 0, 5, 5, 4, 5, 5) == [0, 0, 1, 2, 2, 2, 3, 4]


def test_the_update_of_the_limit_advances():
    falling = [9, 8, 7, 6, 5, 4, 3, 2]
    assert clocks_of(HoldUntilFlat(1, limit=3), {2}, *falling) == [0, 1, 2, 2, 2, 3, 4, 5, 6]
    assert clocks_of(HoldUntilFlat(1, limit=1), {2}, *falling) == list(range(9))


def test_what_is_not_finite_counts_for_the_limit_alone():
    nan, inf = float("nan"), float("inf")
    assert clocks_of(HoldUntilFlat(1, limit=4), {0}, nan, inf, -inf, nan, nan) == [0, 0, 0, 0, 1, 2]
    assert clocks_of(HoldUntilFlat(1, limit=9), {0}, 1, nan, 1e39, 1, 1) == [0, 0, 0, 0, 1, 2]
    assert clocks_of(HoldBelow(0.5, 2), set(), -inf, nan, 0.5, 9, 9) == [0, 1, 2, 2, 2, 3]


def test_a_reading_is_a_mean_from_the_start_of_the_hold():
    rule = HoldUntilFlat(1, every=2, limit=100)
    # From step 1 on: 4 and 2, then 2 and 4: no improvement. The 0 of step 0 is no part of it.
    assert clocks_of(rule, {1}, 0, 4, 2, 2, 4, 0) == [0, 1, 1, 1, 1, 2, 3]
    # One that is not finite only makes the mean wait.
    assert clocks_of(rule, {1}, 0, 4, float("nan"), 2, 2, 4, 0) == [0, 1, 1, 1, 1, 1, 2, 3]


def test_a_reading_is_a_mean_from_the_start_of_the_training():
    assert clocks_of(HoldBelow(3, 1, every=2), {1}, 9, 3, 3, 3, 3, 3) == [0, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("mode", "first", "border"),
    [
        ("rel", 2.0, np.float32(2) * np.float32(1 - 0.3)),
        ("abs", 2.0, np.float32(2) - np.float32(0.3)),
        ("abs", -2.0, np.float32(-2) - np.float32(0.3)),
        # Above: what the words say, and why "rel" is for metrics that are not negative.
        ("rel", -2.0, np.float32(-2) * np.float32(1 - 0.3)),
    ],
)
def test_a_reading_improves_below_the_border_in_float32(mode, first, border):
    rule = HoldUntilFlat(1, threshold=0.3, threshold_mode=mode, limit=100)
    below_it = np.nextafter(border, np.float32(-9))
    assert clocks_of(rule, {0}, first, border) == [0, 0, 1]
    assert clocks_of(rule, {0}, first, below_it) == [0, 0, 0]


def test_a_metric_is_rounded_first():
    border = np.float32(2) - np.float32(0.3)
    rule = HoldUntilFlat(1, threshold=0.3, threshold_mode="abs", limit=100)
    assert clocks_of(rule, {0}, 2.0, float(border) - 1e-12) == [0, 0, 1]
    assert clocks_of(HoldBelow(0.1, 1), set(), 0.1 + 1e-12) == [0, 0]


def test_a_value_holds_from_its_own_update_on():
    assert clocks_of(HoldBelow(0.5, 2), set(), 0.9, 0.5, 0.1, 0.1, 0.1) == [0, 1, 1, 1, 2, 3]


def test_each_value_fires_once_and_adds_to_what_is_left():
    rule = HoldBelow([(0.5, 2), (0.2, 3)])
    assert clocks_of(rule, set(), 0.1, *[0.1] * 6) == [0, 0, 0, 0, 0, 0, 1, 2]
    assert clocks_of(rule, set(), 0.5, 0.2, *[0.1] * 5) == [0, 0, 0, 0, 0, 0, 1, 2]
    assert clocks_of(rule, set(), 0.5, 0.9, 0.9, 0.2, *[0.5] * 4) == [0, 0, 0, 1, 1, 1, 1, 2, 3]


def test_in_a_list_each_counts_alone():
    until, other = HoldUntilFlat(9, limit=2), HoldBelow(0.5, 5)
    # The part at 1 is released after two updates and not held again, while the other goes on to hold.
    assert clocks_of([until, other], {1}, 1, 0, *[0] * 6) == [0, 1, 1, 1, 1, 1, 1, 2, 3]
    # The other's advances are used up while the part is held.
    long = HoldUntilFlat(9, limit=7)
    assert clocks_of([long, other], {1}, 1, 0, *[0] * 7) == [0, 1, 1, 1, 1, 1, 1, 1, 2, 3]


@given(st.one_of(until_flat, below))
def test_a_rule_is_a_value(rule):
    again = eval(repr(rule))
    assert again == rule
    assert hash(again) == hash(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert replace(rule, every=7) != rule
    kind, arguments = (written := rule.to_dict())["kind"], {**written}
    assert json.loads(json.dumps(written)) == written
    del arguments["kind"]
    assert {"hold_until_flat": HoldUntilFlat, "hold_below": HoldBelow}[kind](**arguments) == rule
    with pytest.raises(FrozenInstanceError):
        rule.every = 2


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
def test_bad_arguments_of_hold_until_flat(kind, changes, parts):
    refuses(kind, *parts, call=HoldUntilFlat, **{"patience": 2, "limit": 9, **changes})


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
        (ValueError, {"value": [(0.5, 3), (0.2, -1)]}, ["value[1] = (0.2, -1)", "steps = -1"]),
        (ValueError, {"value": [(0.5, 3), (0.5, 3)]}, ["falling", "0.5 follows 0.5"]),
        (ValueError, {"value": [(0.5, 3), (0.2, 3), (0.3, 3)]}, ["falling", "0.3 follows 0.2"]),
        (ValueError, {"value": [(0.5, 2**31 - 1), (0.2, 1)]}, ["the sum of all steps = 2147483648"]),
    ],
    ids=str,
)
def test_bad_arguments_of_hold_below(kind, arguments, parts):
    refuses(kind, *parts, call=HoldBelow, **arguments)


def test_the_rules_of_an_edge():
    until, other = HoldUntilFlat(2, limit=9), HoldBelow(0.5, 3)
    curve, falling = PlateauCurve(10, plateaus=[(50, 20)]), PlateauCurve(10, plateaus=[(50, 1)])
    assert rules_of(None, falling) == ()
    assert rules_of(until, curve) == (until,)
    assert rules_of([until, other], curve) == rules_of((until, other), curve) == (until, other)
    assert rules_of(other, falling) == (other,)
    refuses(ValueError, "HoldUntilFlat", "flat part", "(50, 1)", call=rules_of, hold=until, curve=falling)
    refuses(ValueError, "flat part", call=rules_of, hold=[other, until], curve=falling)
    refuses(ValueError, "hold", "None", call=rules_of, hold=[], curve=curve)
    for wrong in (3, "flat", HoldBelow, [other, 3], {"kind": "hold_below"}):
        refuses(TypeError, f"hold = {wrong!r}", call=rules_of, hold=wrong, curve=curve)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.1, np.float32(0.1)),
        (2**24 + 1, np.float32(2**24)),
        # By way of a double it would be rounded down twice.
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
def test_a_metric_becomes_the_nearest_float32(value, wanted):
    found = checks.metric("metric", value)
    assert type(found) is np.float32
    np.testing.assert_array_equal(found, wanted)


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
        10**400,
        {},
        [[1], [1, 2]],
        SimpleNamespace(),
    ],
    ids=str,
)
def test_what_is_no_metric(value):
    refuses(TypeError, "loss = ", "must be a real scalar", call=checks.metric, name="loss", value=value)
