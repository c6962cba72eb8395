"""Hypothesis strategies: awkward numbers of every size, and `PlateauCurve`s.

A curve takes up to a hundred numbers, and drawing them one by one takes longer than testing the curve. So
hypothesis draws all of them at once as 64-bit words, and `Words` turns each into a number of the right kind.
"""

import struct
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from support.numerics.oracle import percent_of

from plateau_jax.shapes.known_shapes import INTERPOLATED

MAX_STEP = 2**31 - 1
SMALLEST_NORMAL = 2.0**-126

Option = TypeVar("Option")


class Words:
    """A reader of words, one after the other; it reads zeros after the last."""

    def __init__(self, words: Sequence[int]) -> None:
        self._left = iter(words)

    def __call__(self) -> int:
        return next(self._left, 0)

    def take(self, count: int) -> list[int]:
        return [self() for _ in range(count)]

    def below(self, end: int) -> int:
        return self() % end

    def one_of(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]

    def magnitude(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`; all orders of magnitude, and `high`, are equally likely."""
        return magnitude(self(), low, high)

    def ratio(self) -> float:
        """Return a level in [0, 1] of any magnitude and any number of digits, but not between 0 and 2⁻¹²⁶."""
        rest, kind = divmod(self(), 5)
        if kind <= 1:
            return _RATIOS[rest % len(_RATIOS)]
        if kind == 2:
            return rest % 1001 / 1000
        if kind == 3:
            return rest % 2**53 / 2**53
        rest, exponent = divmod(rest, 126)
        return max((1 + rest % 2**52 / 2**52) * 2.0 ** (-1 - exponent), SMALLEST_NORMAL)


FORMULAS = {"1-x^P": (5, 2000), "(1-x)^P": (5, 2000), "t^-P": (25, 400)}
"""Each formula, with the range of its P in hundredths."""


def shape_of(read: Words, names: Sequence[str]) -> str:
    """Return one of the shapes, with a decimal for P in formulas; reads two words."""
    name, (rest, kind) = read.one_of(names), divmod(read(), 4)
    if name not in FORMULAS:
        return name
    low, high = FORMULAS[name]
    hundredths = low + rest % (high - low + 1)
    if kind == 0:
        power = ("0.5", "1", "2", "3.0", "0.25", "4", "1.5", "0.3333333333333333", "0.50")[rest % 9]
    elif kind == 1:
        power = f"{(low, high, low + 1, high - 1)[rest % 4] / 100:g}"
    elif kind == 2 or hundredths == high:
        power = f"{hundredths / 100:g}"
    else:
        power = f"{hundredths / 100:.2f}{rest % 10**15:015}"
    return name.replace("P", power)


_TINY_RATIOS = 1e-6, 1e-12, 2e-12, 1e-20, 1.5e-19, 1e-30, SMALLEST_NORMAL
_RATIOS = 0, 1, 0.0, 1.0, 0.1, 0.5, 1 / 3, *_TINY_RATIOS, 1 - 2**-53


def magnitude(word: int, low: int, high: int) -> int:
    width = high - low
    rest, order = divmod(word, width.bit_length() + 2)
    if order > width.bit_length():
        return high
    return low + min((1 << order >> 1) + rest % max(1, 1 << order >> 1), width)


def words(count: int) -> st.SearchStrategy[list[int]]:
    """Draw `count` 64-bit integers at once."""
    size = 8 * count
    return st.binary(min_size=size, max_size=size).map(lambda raw: list(struct.unpack(f"<{count}Q", raw)))


def magnitudes(low: int, high: int) -> st.SearchStrategy[int]:
    """Draw integers from `low` to `high`: all orders of magnitude are equally likely, both ends frequent."""
    width = high - low
    by_size = st.integers(0, width.bit_length()).flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return st.one_of(by_size.map(lambda gap: low + min(gap, width)), st.sampled_from((low, high)))


def _percentage(word: int) -> Decimal:
    """Return a percentage of few digits, so that start + duration in floats prints as the decimal sum."""
    rest, kind = divmod(word, 3)
    parts = 10 ** (0, 1, 12)[kind]
    return Decimal(rest % (100 * parts + 1)) / parts


def _number(value: Decimal) -> float:
    return int(value) if value == int(value) else float(value)


def read_arguments(read: Words, counts: Sequence[int], most_steps: int = MAX_STEP) -> dict[str, Any]:
    """Return the arguments of a valid `PlateauCurve`, from 9 + 3 · max(counts) words."""
    total = read.magnitude(1, most_steps)
    flags = read()
    warmup = read.magnitude(0, (total - 1) * (flags & 1))
    after_warmup = total - warmup
    count = read.one_of(counts)
    # Every curve takes the same number of words; if it changed, hypothesis would start again with zeros.
    most = max(counts)
    cuts = sorted(map(_percentage, read.take(2 * most)[: 2 * count]))
    if count and flags & 2:
        cuts[0] = Decimal(0)
    if count and flags & 4:
        cuts[-1] = Decimal(100)

    relative: list[tuple[float, float]] = []
    absolute: list[tuple[int, int]] = []
    held = 0
    starts = [warmup + percent_of(after_warmup, _number(cut)) for cut in cuts[::2]]
    of_lengths = read.take(most)
    for index, (start, end) in enumerate(zip(cuts[::2], cuts[1::2], strict=True)):
        of_length, in_steps = divmod(of_lengths[index], 2)
        room = (starts[index + 1] if index + 1 < count else total) - starts[index]
        pair = _number(start), _number(end - start)
        length = magnitude(of_length, 0, room) if in_steps else percent_of(after_warmup, pair[1])
        if held + length >= after_warmup:
            break  # A step must be left to decay.
        held += length
        if in_steps:
            absolute.append((starts[index], length))
        else:
            relative.append(pair)
    random = Random(read())
    return {
        "total_steps": total,
        "warmup_steps": warmup,
        "plateaus": random.sample(relative, len(relative)),
        "absolute_plateaus": random.sample(absolute, len(absolute)),
        "min_lr_ratio": read.ratio(),
        "init_lr_ratio": read.ratio(),
        "warmup_shape": ("linear", "cosine")[flags >> 3 & 1],
        "decay_shape": shape_of(read, (*INTERPOLATED,)),
    }


def arguments(counts: Sequence[int] = range(31)) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the arguments of a valid `PlateauCurve`; `counts` lists the allowed numbers of plateaus."""
    return words(9 + 3 * max(counts)).map(lambda drawn: read_arguments(Words(drawn), counts))
