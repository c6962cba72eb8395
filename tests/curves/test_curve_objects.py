"""Curves as objects: repr, JSON, equality, copies and description."""

import copy
import dataclasses
import json
import pickle
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from support.curves.descriptions import KINDS, build, descriptions, descriptions_and_steps
from support.curves.strategies import arguments
from support.numerics.oracle import Oracle

import plateau_jax
from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.curves.derived_curves import Cooldown, Then

PUBLIC = "BatchPlan", "Curve", "PlateauCurve", "StagedCurve", "Stage"
SCALED = {
    "scaled": {"total_steps": 100},
    "pairs": [(0, 1), (80, 2)],
    "unit": 4,
    "reference": 2,
    "exponent": 0.5,
}
ONE_OF_EACH_KIND = (
    {"total_steps": 100},
    {"stages": [(100, 0.5, "linear")], "start": 0.0},
    {"cooldown": {"total_steps": 100}, "at": 50, "steps": 50, "to": 0.0, "shape": "1-sqrt"},
    {"curve": {"total_steps": 50}, "then": {"total_steps": 50}, "scale": 0.5},
    {"part": {"total_steps": 100}, "start": 1, "stop": 90},
    SCALED,
)
NAMES = *KINDS, "scaled"


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(descriptions(scaled=True))
def test_repr_evaluates_to_itself(description):
    curve = build(description)
    again = eval(repr(curve), {name: getattr(plateau_jax, name) for name in PUBLIC})
    assert again == curve
    assert repr(again) == repr(curve)


@given(descriptions_and_steps(size=12, scaled=True))
def test_json_round_trip_gives_equal_object(case):
    description, steps = case
    curve = build(description)
    written = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    again = Curve.from_dict(written)
    assert type(again) is type(curve)
    assert again == curve
    assert again.to_dict() == written
    np.testing.assert_array_equal(again(steps), curve(steps))


@given(arguments())
def test_dicts_of_earlier_versions_still_load(chosen):
    curve = build(chosen)
    written = json.loads(json.dumps(chosen))
    assert Curve.from_dict(written) == PlateauCurve.from_dict(written) == curve
    assert curve.to_dict().items() >= PlateauCurve.from_dict(written).to_dict().items()


@given(descriptions(scaled=True), descriptions(scaled=True))
def test_curves_are_equal_exactly_when_their_arguments_are(description, other):
    one, again, another = build(description), build(description), build(other)
    assert one == again
    assert hash(one) == hash(again)
    assert (one == another) == (one.to_dict() == another.to_dict())


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(arguments(), st.randoms())
def test_equality_ignores_order_and_number_types(chosen, random):
    curve = build(chosen)
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
        warmup_shape=chosen["warmup_shape"],
        decay_shape=chosen["decay_shape"],
    )
    assert other == curve
    assert hash(other) == hash(curve)
    assert json.dumps(other.to_dict())


CHANGES = (
    {
        "total_steps": 101,
        "warmup_steps": 1,
        "plateaus": [(50, 10)],
        "absolute_plateaus": [(50, 10)],
        "min_lr_ratio": 0.1,
        "init_lr_ratio": 0.1,
        "warmup_shape": "cosine",
        "decay_shape": "linear",
    },
    {"stages": [(100, 0.5, "cosine")], "start": 0.1},
    {"cooldown": {"total_steps": 101}, "at": 49, "steps": 49, "to": 0.1, "shape": "linear"},
    {"curve": {"total_steps": 51}, "then": {"total_steps": 51}, "scale": 0.25},
    {"part": {"total_steps": 101}, "start": 0, "stop": 91},
    {"scaled": {"total_steps": 101}, "pairs": [(0, 1)], "unit": 2, "reference": 3, "exponent": 1},
)


@pytest.mark.parametrize("kind", range(6), ids=NAMES.__getitem__)
def test_every_argument_of_every_kind_matters_for_equality(kind):
    description = ONE_OF_EACH_KIND[kind]
    others = {build({**description, name: value}) for name, value in CHANGES[kind].items()}
    assert len(others - {build(description)}) == len(CHANGES[kind])


@pytest.mark.parametrize("name", ["total_steps", "segments", "anything"])
@pytest.mark.parametrize("description", ONE_OF_EACH_KIND, ids=NAMES)
def test_attributes_cannot_be_set(description, name):
    curve = build(description)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(curve, name, 5)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda curve: pickle.loads(pickle.dumps(curve))],
    ids=("copy", "deep", "pickle"),
)
@example({"stages": [(0, None, "1-x^0.50"), (0, None, "1-sqrt"), (1,)], "start": 0})
@given(descriptions(scaled=True))
def test_copies_are_equal_and_carry_no_table(copied, description):
    fresh = pickle.dumps(build(description))
    curve = build(description)
    value = curve(curve.total_steps // 2)
    other = copied(curve)
    assert type(other) is type(curve)
    assert other == curve
    assert hash(other) == hash(curve)
    assert other(curve.total_steps // 2) == value
    assert len(pickle.dumps(curve)) == len(fresh) == len(pickle.dumps(other))


def test_replace_checks_arguments():
    with pytest.raises(ValueError, match="warmup_steps = 100"):
        dataclasses.replace(PlateauCurve(100), warmup_steps=100)


@given(descriptions())
def test_describe_lists_nonempty_segments(description):
    curve, oracle = build(description), Oracle(description)
    header, *lines = curve.describe().splitlines()
    assert len({len(line) for line in (header, *lines)}) == 1
    begins = sorted(set(oracle.borders))
    assert [int(line.split()[0]) for line in lines] == begins
    lasts = [str(begin - 1) for begin in begins[1:]] + ["…"]
    assert [line.split()[1] for line in lines] == lasts
    for line, begin in zip(lines, begins, strict=True):
        assert f"{curve(begin):.6g}" == line.split()[-2]


def test_base_class_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        Curve()


@pytest.mark.parametrize("cls", [Curve, PlateauCurve, StagedCurve, Cooldown, Then])
def test_curves_cannot_be_subclassed(cls):
    with pytest.raises(TypeError, match=r"^Recipe cannot be derived from a curve: write a function"):
        type("Recipe", (cls,), {})


@pytest.mark.parametrize("cls", [PlateauCurve, StagedCurve])
def test_fields_have_the_hints_of_their_arguments(cls):
    """Of tools that build curves from a command line, some read the fields and some the constructor."""
    fields = {field.name for field in dataclasses.fields(cls)}
    of_fields, of_arguments = get_type_hints(cls), get_type_hints(cls.__init__)
    assert {name: of_arguments[name] for name in fields} == {name: of_fields[name] for name in fields}
