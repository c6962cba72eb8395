"""The learning rates of curves have the recorded bits, and their tables the recorded integers."""

import pytest
from support.golden.curves import CURVES
from support.golden.tables import describe_tables
from support.golden.write import LEARNING_RATES, TABLES, describe_curves, read

from plateau_jax.curves.serialization import CURVE_CLASSES
from plateau_jax.shapes.known_shapes import SHAPES

DESCRIPTIONS = repr([curve.to_dict() for curve in CURVES.values()])


def test_curves_have_the_recorded_learning_rates():
    assert describe_curves() == read(LEARNING_RATES)


@pytest.mark.slow
def test_tables_have_the_recorded_integers():
    """The learning rates above hide a change of a few units of a coefficient."""
    assert describe_tables() == read(TABLES)


@pytest.mark.parametrize("kind", CURVE_CLASSES)
def test_every_kind_is_recorded(kind):
    assert f"'kind': '{kind}'" in DESCRIPTIONS


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recorded(shape):
    assert f"'{shape.removesuffix('P')}" in DESCRIPTIONS
