"""Hypothesis strategies: awkward numbers of every size, and `PlateauCurve`s.

A curve takes up to a hundred numbers, and drawing them one by one takes longer than testing the
curve. So hypothesis draws a seed, and a generator with this seed draws the numbers.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st
from support.numerics.oracle import SMALLEST_NORMAL, percent_of

from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO

MAX_STEP = 2**31 - 1

randoms: st.SearchStrategy[Random] = st.integers(0, 2**64 - 1).map(Random)
"""Generators, from which a test draws what it needs."""


def draw_magnitude(random: Random, low: int, high: int) -> int:
    """Draw an integer in low … high; each order of magnitude is as likely as the others."""
    width = high - low
    bits = random.randrange(width.bit_length() + 2)
    if bits > width.bit_length():
        return high
    least = 1 << bits >> 1  # of the integers with so many bits
    return low + min(least + random.randrange(max(1, least)), width)


_WRITTEN_RATIOS = [0, 1, 0.0, 1.0, 0.1, 0.5, 1 / 3, 1e-6, 1e-12, 2e-12, 1e-20, 1.5e-19, 1e-30]
_RATIOS = [*_WRITTEN_RATIOS, SMALLEST_NORMAL, 1 - 2**-53]


def draw_ratio(random: Random) -> float:
    """Draw a level in [0, 1] of any size and number of digits: 0, or at least 2⁻¹²⁶."""
    kind = random.randrange(5)
    if kind <= 1:
        return random.choice(_RATIOS)
    if kind == 2:
        return random.randrange(1001) / 1000
    if kind == 3:
        return random.random()
    return (1 + random.random()) * 2.0 ** random.randint(-126, -1)


def draw_shape(random: Random, names: Iterable[str]) -> str:
    """Draw one of the shapes, with a decimal for P in formulas."""
    name = random.choice(tuple(names))
    powers = SHAPES[name].powers
    if powers is None:
        return name
    low, high = (int(100 * Decimal(power)) for power in powers)
    hundredths = random.randint(low, high)
    kind = random.randrange(4)
    if kind == 0:
        decimals = ("0.5", "1", "2", "3.0", "0.25", "4", "1.5", "0.3333333333333333", "0.50")
        power = random.choice(decimals)
    elif kind == 1:
        near_an_end = random.choice((low, high, low + 1, high - 1))
        power = f"{near_an_end / 100:g}"
    elif kind == 2 or hundredths == high:
        power = f"{hundredths / 100:g}"
    else:
        power = f"{hundredths / 100:.2f}{random.randrange(10**15):015}"
    return name.replace("P", power)


def magnitudes(low: int, high: int) -> st.SearchStrategy[int]:
    """Draw integers in low … high: all orders of magnitude are equally likely, the ends more so."""
    width = high - low
    bits = st.integers(0, width.bit_length())
    gaps = bits.flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return st.one_of(gaps.map(lambda gap: low + min(gap, width)), st.sampled_from((low, high)))


def _draw_percentage(random: Random) -> Decimal:
    """Draw a percentage of so few digits that start + duration prints as the decimal sum."""
    digits = random.choice((0, 1, 12))
    return Decimal(random.randint(0, 100 * 10**digits)) / 10**digits


def _number(value: Decimal) -> float:
    if value == int(value):
        return int(value)
    return float(value)


def draw_plateau_curve(
    random: Random, counts: Sequence[int], most_steps: int = MAX_STEP
) -> dict[str, Any]:
    """Draw a description of a `PlateauCurve` with one of these numbers of plateaus."""
    total = draw_magnitude(random, 1, most_steps)
    warmup = random.choice((0, draw_magnitude(random, 0, total - 1)))
    after_warmup = total - warmup
    count = random.choice(counts)
    cuts = sorted(_draw_percentage(random) for _ in range(2 * count))
    if count and random.random() < 0.5:
        cuts[0] = Decimal(0)
    if count and random.random() < 0.5:
        cuts[-1] = Decimal(100)

    relative: list[tuple[float, float]] = []
    absolute: list[tuple[int, int]] = []
    held = 0
    steps = [warmup + percent_of(after_warmup, _number(cut)) for cut in cuts[::2]]
    steps.append(total)
    for index in range(count):
        is_absolute = random.random() < 0.5
        start = _number(cuts[2 * index])
        duration = _number(cuts[2 * index + 1] - cuts[2 * index])
        if is_absolute:
            length = draw_magnitude(random, 0, steps[index + 1] - steps[index])
        else:
            length = percent_of(after_warmup, duration)
        if held + length >= after_warmup:
            break  # A step must be left to decay.
        held += length
        if is_absolute:
            absolute.append((steps[index], length))
        else:
            relative.append((start, duration))
    return {
        "kind": "plateau",
        "total_steps": total,
        "warmup_steps": warmup,
        "plateaus": random.sample(relative, len(relative)),
        "absolute_plateaus": random.sample(absolute, len(absolute)),
        "min_lr_ratio": draw_ratio(random),
        "init_lr_ratio": draw_ratio(random),
        "warmup_shape": random.choice(("linear", "cosine")),
        "decay_shape": draw_shape(random, SHAPES_ALLOWING_ZERO),
    }
