"""Curves as objects: routes that give the same curve again, equality, and descriptions."""

import copy
import dataclasses
import io
import json
import pickle
from collections import UserDict, UserList
from contextlib import contextmanager, suppress
from itertools import pairwise, permutations
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from support.clocks.rules import SAMPLES
from support.curves.descriptions import build, descriptions, descriptions_and_steps
from support.curves.strategies import randoms
from support.examples import examples
from support.golden.curves import CURVES
from support.numerics.oracle import Oracle, are_equal, is_nearest_float32

from plateau_jax import (
    BatchPlan,
    Curve,
    CurveWarning,
    DataClock,
    PlateauCurve,
    StagedCurve,
)
from plateau_jax.clocks.rules import HOLD_RULE_CLASSES
from plateau_jax.curves.serialization import CURVE_CLASSES

# Routes: a curve, a clock or a plan is stored or written, and then is the same again.


def by_its_class(curve):
    text = json.dumps(curve.to_dict(), allow_nan=False)
    return type(curve).from_dict(json.loads(text))


def by_a_configuration(curve):
    arguments = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    return Curve.from_dict(rewrite(arguments, Random(repr(curve))))


def rewrite(value, random):
    """Return the value in a form in which a configuration may hold it, at every depth."""
    match value:
        case dict():
            form = random.choice([dict, MappingProxyType, UserDict])
            return form({name: rewrite(item, random) for name, item in value.items()})
        case list():
            form = random.choice([list, tuple, UserList])
            return form([rewrite(item, random) for item in value])
        case _:
            return value


def by_omegaconf(curve):
    omegaconf = pytest.importorskip("omegaconf")
    return Curve.from_dict(omegaconf.OmegaConf.create(curve.to_dict()))


def by_pickle(value):
    return pickle.loads(pickle.dumps(value))


def by_pickle_0(value):
    return pickle.loads(pickle.dumps(value, 0))


def by_weights(value):
    """Load it as Lightning and other trainers do, with only its class and curves allowed."""
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    with only_allowed(type(value), *CURVE_CLASSES.values()):
        return torch.load(file, weights_only=True)["value"]


@contextmanager
def only_allowed(*classes):
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([*classes])
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


CLASSES = [BatchPlan, DataClock, *HOLD_RULE_CLASSES, PlateauCurve, StagedCurve]
NAMES: dict[str, Any] = {cls.__name__: cls for cls in CLASSES}


def from_repr(value):
    """Evaluate the repr, as users may: it needs no other names than those of the classes."""
    return eval(repr(value), NAMES)


COPIES = [copy.copy, copy.deepcopy, by_pickle, by_pickle_0, by_weights]
WRITTEN = [by_its_class, by_a_configuration, by_omegaconf]
BUILT_AGAIN = [from_repr, dataclasses.replace]
SHAPES_WITHOUT_EFFECT = {
    "kind": "staged",
    "stages": [(0, None, "1-x^0.50"), (0, None, "1-sqrt"), (1,)],
}


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize("route", [*COPIES, *WRITTEN, *BUILT_AGAIN])
@example((SHAPES_WITHOUT_EFFECT, [0, 1]))
@examples(60)
@given(descriptions_and_steps(size=12, scaled=True))
def test_every_route_gives_the_same_curve(route, case):
    description, steps = case
    curve = build(description)
    bytes_before = len(pickle.dumps(curve))
    values = curve(steps)
    again = route(curve)
    assert type(again) is type(curve)
    assert again == curve
    assert curve == build(description)
    assert hash(again) == hash(curve)
    assert repr(again) == repr(curve)
    assert again.to_dict() == curve.to_dict()
    assert again.unit == curve.unit
    assert again.describe() == curve.describe()
    assert again.first_difference(curve) is None
    np.testing.assert_array_equal(again(steps), values)
    # The table is not in a pickle.
    assert len(pickle.dumps(curve)) == bytes_before
    assert len(pickle.dumps(again)) == bytes_before


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(descriptions(depth=0, kind="plateau"), randoms)
def test_equality_ignores_order_and_number_types(chosen, random):
    curve = build(chosen)
    plateaus = random.sample(chosen["plateaus"], len(chosen["plateaus"]))
    absolute = random.sample(chosen["absolute_plateaus"], len(chosen["absolute_plateaus"]))
    of_numpy = PlateauCurve(
        np.int64(chosen["total_steps"]),
        warmup_steps=np.array(chosen["warmup_steps"]),
        plateaus=([np.float64(start), np.float64(duration)] for start, duration in plateaus),
        absolute_plateaus=np.array(absolute, int).reshape(-1, 2),
        min_lr_ratio=np.float64(chosen["min_lr_ratio"]),
        init_lr_ratio=float(chosen["init_lr_ratio"]),
        warmup_shape=np.str_(chosen["warmup_shape"]),
        decay_shape=type("Name", (str,), {})(chosen["decay_shape"]),
    )
    assert of_numpy == curve
    assert hash(of_numpy) == hash(curve)
    assert json.dumps(of_numpy.to_dict())
    assert type(of_numpy.warmup_shape) is str
    assert type(of_numpy.decay_shape) is str


@pytest.mark.parametrize(
    "value",
    [
        BatchPlan([(0, 8), (160, 16)]),
        DataClock(2**62, count=512),
        *SAMPLES,
    ],
    ids=repr,
)
@pytest.mark.parametrize("route", [*COPIES, dataclasses.replace])
def test_every_route_gives_the_same_clock_or_plan(route, value):
    again = route(value)
    assert again == value
    assert hash(again) == hash(value)
    assert repr(again) == repr(value)
    assert again.to_dict() == value.to_dict()


@pytest.mark.parametrize("route", COPIES)
def test_copies_do_not_warn_again(route):
    with pytest.warns(CurveWarning):
        curve = PlateauCurve(1000, plateaus=[(0.5, 0.3)])
    assert route(curve) == curve


# Pickles that were written by somebody else.


def crafted(value, field, wrong):
    copied = copy.deepcopy(value)
    object.__setattr__(copied, field, wrong)
    return copied


@pytest.mark.parametrize(
    ("value", "field", "wrong", "error"),
    [
        (PlateauCurve(9), "total_steps", -5, ValueError),
        (PlateauCurve(9).cooldown(3, 4), "curve", {"total_steps": 0}, TypeError),
        (PlateauCurve(9).part(1), "curve", crafted(PlateauCurve(9), "total_steps", -5), ValueError),
        (StagedCurve([(9, 1.0)]), "stages", ((5, 2.0),), ValueError),
        (BatchPlan([(0, 8)]), "pairs", ((0, 8), (0, 8)), ValueError),
        (DataClock(8), "unit", 0, ValueError),
        *[
            (rule, field.name, (), (TypeError, ValueError))
            for rule in SAMPLES
            for field in dataclasses.fields(rule)
        ],
    ],
)
def test_crafted_pickle_is_rejected(value, field, wrong, error):
    value = crafted(value, field, wrong)
    with pytest.raises(error):
        by_pickle(value)
    with pytest.raises(error):
        by_weights(value)


def test_pickled_curve_names_only_classes_of_curves():
    curve = StagedCurve([(5, 1.0), (5,)]).cooldown(5, 3).then(PlateauCurve(9)).part(2)
    file = io.BytesIO()
    torch.save(curve, file)
    file.seek(0)
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    allowed = [f"{cls.__module__}.{cls.__name__}" for cls in CURVE_CLASSES.values()]
    assert set(needed) <= {*allowed}
    file.seek(0)
    with (
        only_allowed(PlateauCurve),
        pytest.raises(pickle.UnpicklingError, match=r"derived_curves\.Part"),
    ):
        torch.load(file, weights_only=True)


# Arguments.


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize("kind", CURVE_CLASSES)
def test_every_argument_matters(kind):
    """Each takes the values that it has in other recorded curves of this kind."""
    curves = [curve for curve in CURVES.values() if type(curve) is CURVE_CLASSES[kind]]
    for field in dataclasses.fields(CURVE_CLASSES[kind]):
        num_changed = 0
        for curve, other in permutations(curves, 2):
            value = getattr(other, field.name)
            if value == getattr(curve, field.name):
                continue
            with suppress(ValueError):  # the value may not fit the other arguments
                changed = dataclasses.replace(curve, **{field.name: value})
                num_changed += curve.first_difference(changed) is not None
        assert num_changed > 0, field.name


@pytest.mark.parametrize("value", [*CURVES.values(), DataClock(8), *SAMPLES], ids=repr)
def test_no_argument_can_be_set(value):
    names = [field.name for field in dataclasses.fields(value)]
    for name in (*names, "total_steps", "segments", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "other")


@given(descriptions(scaled=True))
def test_segments_are_those_of_the_curve(description):
    curve = build(description)
    oracle = Oracle(description)
    begins = sorted(set(oracle.borders))
    segments = curve.segments
    assert [segment.first_step for segment in segments] == begins
    assert [segment.last_step for segment in segments[:-1]] == [begin - 1 for begin in begins[1:]]
    assert segments[-1].last_step is None
    assert segments[-1].end == segments[-1].start
    assert [segment.start for segment in segments] == curve(begins).tolist()
    for segment, following in pairwise(segments):
        level = oracle.segment_at(segment.first_step).at(following.first_step)
        if are_equal(level, oracle(following.first_step)):
            assert segment.end == following.start
        else:  # the curve jumps
            assert is_nearest_float32(segment.end, level)


@given(descriptions())
def test_describe_prints_the_segments(description):
    curve = build(description)
    header, *lines = curve.describe().splitlines()
    for line, segment in zip(lines, curve.segments, strict=True):
        last_step = "…"
        if segment.last_step is not None:
            last_step = str(segment.last_step)
        assert len(line) == len(header)
        assert line.split() == [
            str(segment.first_step),
            last_step,
            *segment.kind.split(),
            f"{segment.start:.6g}",
            f"{segment.end:.6g}",
        ]


def test_describe_names_stages_cooldown_and_continuation():
    end = StagedCurve([(10, 0.5), (80,), (0, 0.8), (10, 0.1, "exponential")], start=1.0)
    curve = PlateauCurve(100, warmup_steps=10, min_lr_ratio=0.5).cooldown(120, 10).then(end)
    assert curve.describe().splitlines() == [
        "first step  last step  kind                     from          to",
        "         0          9  linear warmup               0           1",
        "        10         99  cosine decay                1         0.5",
        "       100        119  plateau                   0.5         0.5",
        "       120        129  1-sqrt cooldown           0.5           0",
        "       130        139  linear stage                1         0.5",
        "       140        219  plateau                   0.5         0.5",
        "       220        229  exponential stage         0.8         0.1",
        "       230          …  end                       0.1         0.1",
    ]
