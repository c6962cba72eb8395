"""The segments of a table as they are exported: whole integers, without words and limbs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plateau_jax.arguments.checks import MAX_STEP
from plateau_jax.numerics.arithmetic import LIMB_BITS
from plateau_jax.shapes.known_shapes import SHAPES
from plateau_jax.table.encoding import DecodedSegments

FLAT = "flat"
"""The shape of a flat segment."""


class ExportedSegment(NamedTuple):
    """A segment that is not empty."""

    first_step: int
    multiplier: float
    """The level at the start of the whole segment, a float32."""
    shape: str
    parameters: dict[str, int]
    """The numbers of its shape by name, in their order in the file."""
    skipped: int = 0
    """Steps cut off at the start."""
    length: int = 0
    """Steps of the whole segment; 0 if it is flat."""
    start: int = 0
    """Level at the start of the whole segment, in units of 2⁻⁶²."""
    end: int = 0
    """Level at its end, in the same units."""
    shift: int = 0
    """n: both levels are divided by 2ⁿ."""


def exported_segments(
    begins: Sequence[int], segments: Sequence[DecodedSegments]
) -> list[ExportedSegment]:
    """Return the segments that are not empty.

    Args:
        begins: The first step of each row of a table, from `python_rows`.
        segments: The segment of each row, from `python_rows`.
    """
    exported: list[ExportedSegment] = []
    afters = [*begins[1:], None]
    for begin, after, segment in zip(begins, afters, segments, strict=True):
        if begin != after:
            exported.append(_exported_segment(begin, segment))
    return exported


def _exported_segment(first_step: int, segment: DecodedSegments) -> ExportedSegment:
    if not segment.length:
        return ExportedSegment(first_step, segment.start_float32, FLAT, {})
    shape, parameters = _shape_and_parameters(segment.parameters)
    return ExportedSegment(
        first_step,
        segment.start_float32,
        shape,
        parameters,
        skipped=first_step - segment.phase_begin,
        length=segment.length,
        start=segment.start,
        end=segment.end,
        shift=segment.shift or 0,
    )


def _shape_and_parameters(limbs: Mapping[str, Sequence[int]]) -> tuple[str, dict[str, int]]:
    """Return the shape of a segment and its parameters by name, from its limbs."""
    if not limbs:
        return "linear", {}
    ((shape, limbs_of_shape),) = limbs.items()
    parameters = dict(_join_limbs(shape, limbs_of_shape))
    if parameters.pop("is_nearly_equal", 0):
        shape = "parabola"
    return shape, parameters


def _join_limbs(shape: str, limbs: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield the parameters of a shape by name."""
    rest = iter(limbs)
    for name, count in SHAPES[shape].limbs.items():
        value = 0
        for _ in range(count):
            value = (value << LIMB_BITS) | next(rest)
        yield name, value


def hexadecimal(value: int) -> str:
    """Return the literal of an integer, for languages with `0x`."""
    return f"0x{value:X}"


def steps_to_check(segments: Sequence[ExportedSegment]) -> list[int]:
    """Return for each segment its first step, its last step, and seven steps between them."""
    steps: list[int] = []
    after = MAX_STEP + 1
    for segment in reversed(segments):
        last_offset = after - 1 - segment.first_step
        for eighth in range(9):
            steps.append(segment.first_step + last_offset * eighth // 8)
        after = segment.first_step
    return steps
