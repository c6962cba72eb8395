"""Curves as objects: routes that give the same curve again, equality, and descriptions."""

import copy
import dataclasses
import inspect
import io
import json
import pickle
from collections import UserDict, UserList
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from typing import get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from support.curves.descriptions import KINDS, build, descriptions, descriptions_and_steps
from support.curves.strategies import arguments
from support.examples import examples
from support.numerics.oracle import Oracle

import plateau_jax
from plateau_jax import BatchPlan, Curve, DataClock, HoldBelow, HoldUntilFlat, PlateauCurve, StagedCurve

PUBLIC = {name: getattr(plateau_jax, name) for name in ("BatchPlan", "PlateauCurve", "StagedCurve")}


def _rewrite(value, random):
    """Return the value in one of the forms in which a configuration may hold it, at every depth."""
    if isinstance(value, dict):
        items = {name: _rewrite(item, random) for name, item in value.items()}
        if items.get("kind") == "staged" and random.random() < 0.5:
            del items["kind"]
        return random.choice([dict, MappingProxyType, UserDict])(items)
    if isinstance(value, list):
        return random.choice([list, tuple, UserList])([_rewrite(item, random) for item in value])
    if isinstance(value, int):
        return random.choice([value, str(value), f"{value:_}", f" {value} "])
    return random.choice([value, repr(value)]) if isinstance(value, float) else value


def _from_rewritten(curve):
    written = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    return Curve.from_dict(_rewrite(written, Random(repr(curve))))


def _from_omegaconf(curve):
    omegaconf = pytest.importorskip("omegaconf")
    return Curve.from_dict(omegaconf.OmegaConf.create(curve.to_dict()))


def _from_weights(curve):
    """Load it as Lightning and other trainers do, with no other class allowed."""
    file = io.BytesIO()
    torch.save({"curve": curve}, file)
    file.seek(0)
    with _only_allowed(type(curve)):
        return torch.load(file, weights_only=True)["curve"]


@contextmanager
def _only_allowed(*classes):
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(classes))
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _from_copied_fields(curve):
    """Copy it as Lightning copies hyperparameters: each field is set to the value that it has."""
    copied = copy.deepcopy(curve)
    for field in dataclasses.fields(curve):
        setattr(copied, field.name, copy.deepcopy(getattr(curve, field.name)))
    return copied


ROUTES = {
    "repr": lambda curve: eval(repr(curve), PUBLIC),
    "class": lambda curve: type(curve).from_dict(json.loads(json.dumps(curve.to_dict(), allow_nan=False))),
    "rewritten": _from_rewritten,
    "omegaconf": _from_omegaconf,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda curve: pickle.loads(pickle.dumps(curve)),
    "pickle 0": lambda curve: pickle.loads(pickle.dumps(curve, 0)),
    "weights": _from_weights,
    "fields": _from_copied_fields,
    "asdict": lambda curve: Curve.from_dict(dataclasses.asdict(curve)),
    "replace": dataclasses.replace,
}


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize("route", ROUTES)
@example(({"stages": [(0, None, "1-x^0.50"), (0, None, "1-sqrt"), (1,)], "start": 0}, [0, 1]))
@examples(60)
@given(descriptions_and_steps(size=12, scaled=True))
def test_every_route_gives_the_same_curve(route, case):
    description, steps = case
    curve = build(description)
    values, bytes_before = curve(steps), len(pickle.dumps(curve))
    again = ROUTES[route](curve)
    assert type(again) is type(curve)
    assert again == curve == build(description)
    assert (hash(again), repr(again), again.to_dict()) == (hash(curve), repr(curve), curve.to_dict())
    assert (again.unit, again.describe()) == (curve.unit, curve.describe())
    assert again.first_difference(curve) is None
    np.testing.assert_array_equal(again(steps), values)
    assert len(pickle.dumps(curve)) == len(pickle.dumps(again)) == bytes_before  # no table in it


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(arguments(), st.randoms())
def test_equality_ignores_order_and_number_types(chosen, random):
    curve = build(chosen)
    # A dictionary may lack arguments, which then have their defaults.
    written = json.loads(json.dumps(chosen))
    assert Curve.from_dict(written) == PlateauCurve.from_dict(written) == curve
    shuffled = {
        name: random.sample(chosen[name], len(chosen[name])) for name in ("plateaus", "absolute_plateaus")
    }
    other = PlateauCurve(
        np.int64(chosen["total_steps"]),
        warmup_steps=np.array(chosen["warmup_steps"]),
        plateaus=([np.float64(start), np.float64(duration)] for start, duration in shuffled["plateaus"]),
        absolute_plateaus=np.array(shuffled["absolute_plateaus"], int).reshape(-1, 2),
        min_lr_ratio=np.float64(chosen["min_lr_ratio"]),
        init_lr_ratio=float(chosen["init_lr_ratio"]),
        warmup_shape=np.str_(chosen["warmup_shape"]),
        decay_shape=type("Name", (str,), {})(chosen["decay_shape"]),
    )
    assert (other, hash(other)) == (curve, hash(curve))
    assert json.dumps(other.to_dict())
    assert type(other.warmup_shape) is type(other.decay_shape) is str


VALUES = [
    BatchPlan([(0, 8), (160, 16)]),
    DataClock(2**62, count=512),
    HoldBelow(0.5, 100),
    HoldBelow([(0.5, 100), (0.2, 300)], every=10),
    HoldUntilFlat(5, every=100, limit=20_000),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("route", ["copy", "deepcopy", "pickle", "pickle 0", "weights", "fields", "replace"])
def test_every_route_gives_the_same_clock_or_plan(route, value):
    again = ROUTES[route](value)
    assert (again, hash(again), repr(again)) == (value, hash(value), repr(value))
    assert again.to_dict() == value.to_dict()


@pytest.mark.parametrize(
    ("value", "name", "wrong", "error"),
    [
        (PlateauCurve(9), "total_steps", -5, ValueError),
        (PlateauCurve(9), "total_steps", "9", TypeError),
        (PlateauCurve(9).cooldown(3, 4), "curve", 5, TypeError),
        (PlateauCurve(9).cooldown(3, 4), "curve", {"total_steps": 0}, ValueError),
        (StagedCurve([(9, 1.0)]), "stages", ((5, 2.0),), ValueError),
        (BatchPlan([(0, 8)]), "pairs", ((0, 8), (0, 8)), ValueError),
        (DataClock(8), "unit", 0, ValueError),
        (DataClock(8), "total", 3, TypeError),
        (HoldBelow(0.5, 100), "steps", 0, ValueError),
        (HoldUntilFlat(5, limit=9), "limit", 4.5, TypeError),
    ],
)
def test_crafted_pickle_is_rejected(value, name, wrong, error):
    """A file may hold any state of a class that is allowed."""
    value = copy.deepcopy(value)
    object.__setattr__(value, name, wrong)
    with pytest.raises(error):
        pickle.loads(pickle.dumps(value))
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    with _only_allowed(type(value)), pytest.raises(error):
        torch.load(file, weights_only=True)


def test_pickled_curve_names_only_its_class():
    curve = StagedCurve([(5, 1.0), (5,)]).cooldown(5, 3).then(PlateauCurve(9)).part(2)
    file = io.BytesIO()
    torch.save(curve, file)
    file.seek(0)
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    assert set(needed) <= {"plateau_jax.curves.derived_curves.Part"}
    file.seek(0)
    with _only_allowed(PlateauCurve), pytest.raises(pickle.UnpicklingError, match=r"derived_curves\.Part"):
        torch.load(file, weights_only=True)


@pytest.mark.parametrize("route", sorted(ROUTES.keys() - {"repr", "replace"}))  # those build a new curve
def test_copies_do_not_warn_again(route):
    with pytest.warns(plateau_jax.CurveWarning):
        curve = PlateauCurve(1000, plateaus=[(0.5, 0.3)])
    assert ROUTES[route](curve) == curve


# One curve of each kind, and another value of each argument.
PLATEAU, OTHER_PLATEAU = {"total_steps": 100}, {"total_steps": 101, "warmup_steps": 1}
PAIRS = {"plateaus": [(50, 10)], "absolute_plateaus": [(50, 10)]}
SHAPE = {"min_lr_ratio": 0.1, "init_lr_ratio": 0.1, "warmup_shape": "cosine", "decay_shape": "linear"}
CHANGES = [
    (PLATEAU, OTHER_PLATEAU | PAIRS | SHAPE),
    ({"stages": [(100, 0.5, "linear")], "start": 0.0}, {"stages": [(100, 0.5, "cosine")], "start": 0.1}),
    (
        {"cooldown": PLATEAU, "at": 50, "steps": 50, "to": 0.0, "shape": "1-sqrt"},
        {"cooldown": OTHER_PLATEAU, "at": 49, "steps": 49, "to": 0.1, "shape": "linear"},
    ),
    (
        {"curve": PLATEAU, "then": PLATEAU, "scale": 0.5},
        {"curve": OTHER_PLATEAU, "then": OTHER_PLATEAU, "scale": 0.25},
    ),
    ({"part": PLATEAU, "start": 1, "stop": 90}, {"part": OTHER_PLATEAU, "start": 0, "stop": 91}),
    (
        {"scaled": PLATEAU, "pairs": [(0, 1), (80, 2)], "unit": 4, "reference": 2, "exponent": 0.5},
        {"scaled": OTHER_PLATEAU, "pairs": [(0, 1)], "unit": 2, "reference": 3, "exponent": 1},
    ),
]


@pytest.mark.parametrize(("description", "changes"), CHANGES, ids=(*KINDS, "scaled"))
def test_every_argument_matters_and_none_can_be_set(description, changes):
    curve = build(description)
    others = {build({**description, name: value}) for name, value in changes.items()}
    assert len(others - {curve}) == len(changes)
    for name in ("total_steps", "segments", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(curve, name, 5)


@given(descriptions())
def test_describe_lists_nonempty_segments(description):
    curve, oracle = build(description), Oracle(description)
    header, *lines = curve.describe().splitlines()
    assert len({len(line) for line in (header, *lines)}) == 1
    begins = sorted(set(oracle.borders))
    assert [int(line.split()[0]) for line in lines] == begins
    assert [line.split()[1] for line in lines] == [*(str(begin - 1) for begin in begins[1:]), "…"]
    for line, begin in zip(lines, begins, strict=True):
        assert f"{curve(begin):.6g}" == line.split()[-2]


def test_describe_names_stages_cooldown_and_continuation():
    end = StagedCurve([(10, 0.5), (80,), (0, 0.8), (10, 0.1, "exponential")], start=1.0)
    curve = PlateauCurve(100, warmup_steps=10, min_lr_ratio=0.5).cooldown(120, 10).then(end)
    assert curve.describe().splitlines() == [
        "first step  last step  kind                     from          to",
        "         0          9  linear warmup               0           1",
        "        10         99  cosine decay                1         0.5",
        "       100        119  hold                      0.5         0.5",
        "       120        129  1-sqrt cooldown           0.5           0",
        "       130        139  linear stage                1         0.5",
        "       140        219  hold                      0.5         0.5",
        "       220        229  exponential stage         0.8         0.1",
        "       230          …  end                       0.1         0.1",
    ]
    shortened = PlateauCurve(100, decay_shape="linear").cooldown(50, 10).describe().splitlines()
    assert shortened[1].split() == ["0", "49", "linear", "decay", "1", "0.5"]


@pytest.mark.parametrize("cls", [PlateauCurve, StagedCurve])
def test_signature_agrees_with_the_fields(cls):
    """Of tools that build curves from a command line, some read the fields and some the constructor."""
    of_fields, of_arguments = get_type_hints(cls), get_type_hints(cls.__init__)
    parameters = inspect.signature(cls).parameters
    for field in dataclasses.fields(cls):
        assert of_arguments[field.name] == of_fields[field.name]
        missing = inspect.Parameter.empty
        default = missing if field.default is dataclasses.MISSING else field.default
        assert parameters[field.name].default == default
