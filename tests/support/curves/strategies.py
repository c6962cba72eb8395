"""Hypothesis strategies: awkward numbers of every size, and `PlateauCurve`s.

A curve takes up to a hundred numbers, and drawing them one by one takes longer than testing the
curve. So hypothesis draws all of them at once as 64-bit words, and `Words` turns each into a number
of the right kind.
"""

import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from support.numerics.oracle import SMALLEST_NORMAL, percent_of

from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO

MAX_STEP = 2**31 - 1

Option = TypeVar("Option")


class Words:
    """A reader of words, one after the other; it reads zeros after the last."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.left = iter(words)

    def __repr__(self) -> str:
        return f"Words({self.words})"

    def __call__(self) -> int:
        return next(self.left, 0)

    def take(self, count: int) -> list[int]:
        return [self() for _ in range(count)]

    def below(self, end: int) -> int:
        return self() % end

    def one_of(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]

    def magnitude(self, low: int, high: int) -> int:
        """Return an integer in low … high; each order of magnitude is as likely as the others."""
        return magnitude(self(), low, high)

    def ratio(self) -> float:
        """Return a level in [0, 1] of any size and number of digits: 0, or at least 2⁻¹²⁶."""
        rest, kind = divmod(self(), 5)
        if kind <= 1:
            return _RATIOS[rest % len(_RATIOS)]
        if kind == 2:
            return rest % 1001 / 1000
        if kind == 3:
            return rest % 2**53 / 2**53
        rest, exponent = divmod(rest, 126)
        return max((1 + rest % 2**52 / 2**52) * 2.0 ** (-1 - exponent), SMALLEST_NORMAL)

    def shape(self, names: Iterable[str]) -> str:
        """Return one of the shapes, with a decimal for P in formulas; reads two words."""
        name = self.one_of(tuple(names))
        rest, kind = divmod(self(), 4)
        powers = SHAPES[name].powers
        if powers is None:
            return name
        low, high = (int(100 * Decimal(power)) for power in powers)
        hundredths = low + rest % (high - low + 1)
        if kind == 0:
            decimals = ("0.5", "1", "2", "3.0", "0.25", "4", "1.5", "0.3333333333333333", "0.50")
            power = decimals[rest % len(decimals)]
        elif kind == 1:
            near_an_end = (low, high, low + 1, high - 1)[rest % 4]
            power = f"{near_an_end / 100:g}"
        elif kind == 2 or hundredths == high:
            power = f"{hundredths / 100:g}"
        else:
            power = f"{hundredths / 100:.2f}{rest % 10**15:015}"
        return name.replace("P", power)


_WRITTEN_RATIOS = [0, 1, 0.0, 1.0, 0.1, 0.5, 1 / 3, 1e-6, 1e-12, 2e-12, 1e-20, 1.5e-19, 1e-30]
_RATIOS = [*_WRITTEN_RATIOS, SMALLEST_NORMAL, 1 - 2**-53]


def magnitude(word: int, low: int, high: int) -> int:
    """Turn a word into an integer in low … high, as `Words.magnitude` does."""
    width = high - low
    rest, bits = divmod(word, width.bit_length() + 2)
    if bits > width.bit_length():
        return high
    least = 1 << bits >> 1  # of the integers with so many bits
    return low + min(least + rest % max(1, least), width)


def words(count: int) -> st.SearchStrategy[Words]:
    """Draw `count` 64-bit integers at once, to be read one after the other."""
    size = 8 * count

    def unpack(raw: bytes) -> Words:
        return Words(struct.unpack(f"<{count}Q", raw))

    return st.binary(min_size=size, max_size=size).map(unpack)


def magnitudes(low: int, high: int) -> st.SearchStrategy[int]:
    """Draw integers in low … high: all orders of magnitude are equally likely, the ends more so."""
    width = high - low
    bits = st.integers(0, width.bit_length())
    gaps = bits.flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return st.one_of(gaps.map(lambda gap: low + min(gap, width)), st.sampled_from((low, high)))


def _percentage(word: int) -> Decimal:
    """Return a percentage of so few digits that start + duration prints as the decimal sum."""
    rest, kind = divmod(word, 3)
    digits = (0, 1, 12)[kind]
    return Decimal(rest % (100 * 10**digits + 1)) / 10**digits


def _number(value: Decimal) -> float:
    if value == int(value):
        return int(value)
    return float(value)


def read_arguments(
    read: Words, counts: Sequence[int], most_steps: int = MAX_STEP
) -> dict[str, Any]:
    """Return the arguments of a valid `PlateauCurve`, from 9 + 3 · max(counts) words."""
    total = read.magnitude(1, most_steps)
    flags = read()
    warmup = read.magnitude(0, (total - 1) * (flags & 1))
    after_warmup = total - warmup
    count = read.one_of(counts)
    # Every curve takes the same number of words. Otherwise hypothesis would start again with zeros.
    most = max(counts)
    cuts = sorted(map(_percentage, read.take(2 * most)[: 2 * count]))
    if count and flags & 2:
        cuts[0] = Decimal(0)
    if count and flags & 4:
        cuts[-1] = Decimal(100)

    relative: list[tuple[float, float]] = []
    absolute: list[tuple[int, int]] = []
    held = 0
    steps = [warmup + percent_of(after_warmup, _number(cut)) for cut in cuts[::2]]
    steps.append(total)
    words_of_lengths = read.take(most)
    for index in range(count):
        rest, is_absolute = divmod(words_of_lengths[index], 2)
        start = _number(cuts[2 * index])
        duration = _number(cuts[2 * index + 1] - cuts[2 * index])
        if is_absolute:
            length = magnitude(rest, 0, steps[index + 1] - steps[index])
        else:
            length = percent_of(after_warmup, duration)
        if held + length >= after_warmup:
            break  # A step must be left to decay.
        held += length
        if is_absolute:
            absolute.append((steps[index], length))
        else:
            relative.append((start, duration))
    random = Random(read())
    return {
        "total_steps": total,
        "warmup_steps": warmup,
        "plateaus": random.sample(relative, len(relative)),
        "absolute_plateaus": random.sample(absolute, len(absolute)),
        "min_lr_ratio": read.ratio(),
        "init_lr_ratio": read.ratio(),
        "warmup_shape": ("linear", "cosine")[flags >> 3 & 1],
        "decay_shape": read.shape(SHAPES_ALLOWING_ZERO),
    }
