"""Classes derived from each kind of curve: `from_dict` and copies return the same class."""

import copy
import dataclasses
import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.curves.descriptions import KINDS, build, descriptions

from plateau_jax import Curve, PlateauCurve, StagedCurve
from plateau_jax.curves.derived_curves import Cooldown, Then


class PlainPlateaus(PlateauCurve):
    pass


class PlainStages(StagedCurve):
    pass


class PlainCooldown(Cooldown):
    pass


class PlainThen(Then):
    pass


@dataclass(frozen=True, kw_only=True)
class WithFields:
    """Fields of a derived dataclass; some have the names of keys that mean something to the kind."""

    note: str = ""
    warmup: float = 0.5
    kind: str | None = None
    runs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotedPlateaus(WithFields, PlateauCurve):
    pass


@dataclass(frozen=True, kw_only=True)
class NotedStages(WithFields, StagedCurve):
    pass


@dataclass(frozen=True, kw_only=True)
class NotedCooldown(WithFields, Cooldown):
    def __post_init__(self):
        if not isinstance(self.note, str):
            raise TypeError(f"note = {self.note!r} must be a str")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class NotedThen(WithFields, Then):
    curve_before: str = ""  # a plain field in spite of its name


class Recipe:
    """A constructor with other arguments than the fields."""

    def __init__(self, curve, place):
        object.__setattr__(self, "place", place)
        super().__init__(**fields_of(curve))


class PlateausRecipe(Recipe, PlateauCurve):
    pass


class StagesRecipe(Recipe, StagedCurve):
    pass


class CooldownRecipe(Recipe, Cooldown):
    pass


class ThenRecipe(Recipe, Then):
    pass


PLAIN = PlainPlateaus, PlainStages, PlainCooldown, PlainThen
NOTED = NotedPlateaus, NotedStages, NotedCooldown, NotedThen
RECIPES = PlateausRecipe, StagesRecipe, CooldownRecipe, ThenRecipe


def fields_of(curve):
    return {field.name: getattr(curve, field.name) for field in dataclasses.fields(curve)}


def derived_of(classes, curve):
    return next(cls for cls in classes if issubclass(cls, type(curve)))


added = st.fixed_dictionaries(
    {
        "note": st.text(max_size=5),
        "warmup": st.floats(0, 1),
        "kind": st.none() | st.sampled_from(("staged", "mine")),
        "runs": st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=2).map(tuple),
    }
)


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@pytest.mark.parametrize("form", ["plain", "fields", "recipe"])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_derived_class_reads_its_dict_and_is_copied(form, kind, data):
    curve = build(data.draw(descriptions(range(4), kind=kind)))
    match form:
        case "plain":
            mine = derived_of(PLAIN, curve)(**fields_of(curve))
        case "fields":
            mine = derived_of(NOTED, curve)(**fields_of(curve), **data.draw(added))
        case _:
            mine = derived_of(RECIPES, curve)(curve, 7)
    written = json.loads(json.dumps(mine.to_dict(), allow_nan=False))

    if form == "fields":  # JSON has no tuples
        written["derived"]["runs"] = mine.runs
    for arguments in (mine.to_dict(), written):
        again = type(mine).from_dict(arguments)
        assert type(again) is type(mine)
        assert again == mine
        assert hash(again) == hash(mine)
        assert again.to_dict() == mine.to_dict() == written
        np.testing.assert_array_equal(again(range(50)), curve(range(50)))

    base = Curve.from_dict(written)
    assert type(base) is type(curve)
    assert base == type(curve).from_dict(written) == curve

    for copied in (copy.copy(mine), copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert type(copied) is type(mine)
        assert copied == mine
        assert copied.rows == mine.rows
        assert vars(copied).keys() - {"segments", "flat_starts"} == vars(mine).keys() - {
            "segments",
            "flat_starts",
        }


@given(descriptions())
def test_every_kind_reads_its_own_dict(description):
    curve = build(description)
    assert type(curve).from_dict(curve.to_dict()) == curve


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(descriptions(range(4), depth=1), added)
def test_derived_class_inside_others_is_read_as_its_kind(description, fields):
    curve = build(description)
    noted = derived_of(NOTED, curve)(**fields_of(curve), **fields)
    end = StagedCurve([(5, 0.0)])
    if curve.total_steps < 2**31 - 10:
        for of in (lambda curve: curve.cooldown(3, 2), lambda curve: end.then(curve)):
            assert Curve.from_dict(of(noted).to_dict()) == of(curve)


def test_class_refuses_kinds_it_does_not_derive_from():
    curve = PlateauCurve(100)
    written = [curve.to_dict(), StagedCurve([(5, 1)]).to_dict(), curve.cooldown(5, 5).to_dict()]
    for cls, arguments in zip((PlainStages, NotedCooldown, PlateausRecipe), written, strict=True):
        with pytest.raises(ValueError, match=f"the arguments of a .*, not of a {cls.__name__}$"):
            cls.from_dict(arguments)


def test_fields_of_derived_class_are_arguments():
    noted = NotedPlateaus(10, note="a")
    assert noted.to_dict() == {
        **PlateauCurve(10).to_dict(),
        "derived": {"note": "a", "warmup": 0.5, "kind": None, "runs": ()},
    }
    written = noted.to_dict()
    del written["derived"]["note"]
    with pytest.raises(ValueError, match=r"NotedPlateaus: missing keys \['note'\], unknown keys \[\]"):
        NotedPlateaus.from_dict(written)
    # A user's own `to_dict` may write them next to the kind's arguments.
    assert NotedPlateaus.from_dict({**written, "note": "a", "runs": ()}) == noted
    with pytest.raises(ValueError, match=r"PlateauCurve: missing keys \[\], unknown keys \['note'\]"):
        Curve.from_dict({**written, "note": "a"})
    cooled = NotedCooldown(noted, 5, 5).to_dict()
    with pytest.raises(TypeError, match="note = 5 must be a str"):
        NotedCooldown.from_dict({**cooled, "note": 5})


@pytest.mark.parametrize("value", [None, 5, [], "note"], ids=repr)
def test_derived_fields_must_be_a_mapping(value):
    for cls in (Curve, PlateauCurve, NotedPlateaus):
        with pytest.raises(TypeError, match=r"^derived = .* must be a mapping"):
            cls.from_dict({**PlateauCurve(10).to_dict(), "derived": value})


def test_copy_keeps_attributes_besides_fields():
    recipe = PlateausRecipe(PlateauCurve(10), 3)
    assert copy.copy(recipe).place == pickle.loads(pickle.dumps(recipe)).place == 3


@dataclass(frozen=True, kw_only=True)
class Halved(PlateauCurve):
    """A class whose `__post_init__` changes a field each time it runs."""

    place: dataclasses.InitVar[int] = 0

    def __post_init__(self, place):
        object.__setattr__(self, "min_lr_ratio", self.min_lr_ratio / 2)
        super().__post_init__()
        object.__setattr__(self, "note", [place])


def test_copy_skips_post_init_of_derived_class():
    curve = Halved(10, min_lr_ratio=0.5, place=3)
    for copied in (copy.copy(curve), copy.deepcopy(curve), pickle.loads(pickle.dumps(curve))):
        assert type(copied) is Halved
        assert copied == curve
        assert copied.min_lr_ratio == 0.25
        assert copied.note == [3]
        np.testing.assert_array_equal(copied(range(12)), curve(range(12)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlateaus(PlateauCurve):
    note: str = ""


@dataclass(frozen=True, slots=True)
class SlotStages(StagedCurve):
    pass


@dataclass(frozen=True, slots=True)
class SlotCooldown(Cooldown):
    pass


@dataclass(frozen=True, slots=True)
class SlotThen(Then):
    pass


SLOTS = SlotPlateaus, SlotStages, SlotCooldown, SlotThen


@pytest.mark.filterwarnings("ignore::plateau_jax.CurveWarning")
@given(descriptions(range(4)))
def test_class_with_slots_keeps_checked_arguments(description):
    curve = build(description)
    written = {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields_of(curve).items()
    }
    mine = derived_of(SLOTS, curve)(**written)
    assert {name: getattr(mine, name) for name in written} == fields_of(curve)
    assert mine.total_steps == curve.total_steps
    assert hash(mine) == hash(type(mine)(**fields_of(curve)))
    np.testing.assert_array_equal(mine(range(50)), curve(range(50)))
    for copied in (
        type(mine).from_dict(json.loads(json.dumps(mine.to_dict()))),
        copy.copy(mine),
        copy.deepcopy(mine),
        pickle.loads(pickle.dumps(mine)),
    ):
        assert type(copied) is type(mine)
        assert copied == mine
