"""The specs of all shapes."""

from fractions import Fraction
from itertools import chain

from proofs.shapes.spec import GeometricSpec, InterpolatedSpec, ShapeSpec
from proofs.shapes.test_cosine import CosineSpec
from proofs.shapes.test_exponential import ExponentialSpec
from proofs.shapes.test_inverse_power import InversePowerSpec
from proofs.shapes.test_line import LinearSpec
from proofs.shapes.test_power import PowerFromEndSpec, PowerFromStartSpec
from proofs.shapes.test_root import SquareRootSpec

_SPECS: tuple[ShapeSpec, ...] = (
    LinearSpec(),
    CosineSpec(),
    SquareRootSpec(),
    ExponentialSpec(),
    PowerFromStartSpec(),
    PowerFromEndSpec(),
    InversePowerSpec(),
)

SPECS = {spec.name: spec for spec in _SPECS}
"""Every spec by the name of its shape, in the order in which messages list the shapes."""

INTERPOLATED_SPECS = {
    name: spec for name, spec in SPECS.items() if isinstance(spec, InterpolatedSpec)
}
GEOMETRIC_SPECS = {name: spec for name, spec in SPECS.items() if isinstance(spec, GeometricSpec)}

FORMULAS = [name for name in SPECS if name.endswith("P")]
"""The names that take a number in place of P."""

SAMPLES = [*chain.from_iterable(spec.samples for spec in SPECS.values())]
"""Every shape, and formulas with each P at an end of its range."""

GEOMETRIC_SAMPLES = [*chain.from_iterable(spec.samples for spec in GEOMETRIC_SPECS.values())]

STAGES = dict(chain.from_iterable(spec.stages.items() for spec in SPECS.values()))
"""By the name of a golden curve, the shape of its stages."""


def spec_and_power(shape: str) -> tuple[ShapeSpec, Fraction]:
    """Return the spec of a shape that a user wrote, and its P; 1 for a shape without P."""
    if shape in SPECS:
        return SPECS[shape], Fraction(1)
    for name, spec in SPECS.items():
        before_power = name.removesuffix("P")
        if before_power != name and shape.startswith(before_power):
            return spec, Fraction(shape.removeprefix(before_power))
    raise KeyError(shape)
