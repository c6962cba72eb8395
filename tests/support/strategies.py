"""Hypothesis strategies: curves with everything that may be awkward about them, and steps.

A curve takes up to a hundred numbers. Drawn one by one they cost more than what is tested on them, so
hypothesis draws them together, as words of 64 bits, which are read here as what is wanted.
"""

import itertools
import struct
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from support.oracle import Oracle, share_of

MAX_STEP = 2**31 - 1
SMALLEST_NORMAL = 2.0**-126


def words(count: int) -> st.SearchStrategy[list[int]]:
    """So many integers of 64 bits, in one draw."""
    size = 8 * count
    return st.binary(min_size=size, max_size=size).map(lambda raw: list(struct.unpack(f"<{count}Q", raw)))


def _magnitude(word: int, low: int, high: int) -> int:
    """An integer from `low` to `high`: both ends often, and every order of magnitude alike."""
    width = high - low
    rest, order = divmod(word, width.bit_length() + 2)
    if order > width.bit_length():
        return high
    return low + min((1 << order >> 1) + rest % max(1, 1 << order >> 1), width)


def magnitudes(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers from `low` to `high`, every order of magnitude alike, with both ends."""
    width = high - low
    by_size = st.integers(0, width.bit_length()).flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return st.one_of(by_size.map(lambda gap: low + min(gap, width)), st.sampled_from((low, high)))


def _percentage(word: int) -> Decimal:
    """As many digits as keep start + duration, in decimals, within what a float prints."""
    rest, kind = divmod(word, 3)
    parts = 10 ** (0, 1, 12)[kind]
    return Decimal(rest % (100 * parts + 1)) / parts


def _number(value: Decimal) -> float:
    return int(value) if value == int(value) else float(value)


percentages = words(1).map(lambda drawn: _percentage(drawn[0]))

ratios = st.one_of(
    st.sampled_from((0, 1, 0.0, 1.0, 0.1, 0.5, 1 / 3, 1e-6, 1e-12, 1e-30, SMALLEST_NORMAL, 1 - 2.0**-53)),
    st.floats(0, 1).filter(lambda ratio: ratio == 0 or ratio >= SMALLEST_NORMAL),
    st.integers(0, 1000).map(lambda parts: parts / 1000),
)
_shapes = st.sampled_from(list(itertools.product(("linear", "cosine"), ("cosine", "linear"))))


@st.composite
def _curves(draw: st.DrawFn, counts: Sequence[int], more: int) -> tuple[dict[str, Any], list[int]]:
    """The arguments of a valid curve, and so many words more."""
    # As many words for each curve: where their number changes, hypothesis goes back to zeros.
    most = max(counts)
    of_total, of_warmup, of_count, flags, order, *rest = draw(words(5 + 3 * most + more))
    total = _magnitude(of_total, 1, MAX_STEP)
    warmup = _magnitude(of_warmup, 0, total - 1) if flags & 1 else 0
    after_warmup = total - warmup
    count = counts[of_count % len(counts)]
    cuts = sorted(map(_percentage, rest[: 2 * count]))
    if count and flags & 2:
        cuts[0] = Decimal(0)
    if count and flags & 4:
        cuts[-1] = Decimal(100)

    relative: list[tuple[float, float]] = []
    absolute: list[tuple[int, int]] = []
    held = 0
    starts = [warmup + share_of(after_warmup, _number(cut)) for cut in cuts[::2]]
    for index, (start, end) in enumerate(zip(cuts[::2], cuts[1::2], strict=True)):
        of_length, in_steps = divmod(rest[2 * most + index], 2)
        if in_steps:
            room = (starts[index + 1] if index + 1 < count else total) - starts[index]
            length = _magnitude(of_length, 0, room)
            absolute.append((starts[index], length))
        else:
            pair = _number(start), _number(end - start)
            length = share_of(after_warmup, pair[1])
            relative.append(pair)
        held += length
    assume(held < after_warmup)
    random = Random(order)
    warmup_shape, decay_shape = draw(_shapes)
    chosen = {
        "total_steps": total,
        "warmup_steps": warmup,
        "plateaus": random.sample(relative, len(relative)),
        "absolute_plateaus": random.sample(absolute, len(absolute)),
        "min_lr_ratio": draw(ratios),
        "init_lr_ratio": draw(ratios),
        "warmup": warmup_shape,
        "decay": decay_shape,
    }
    return chosen, rest[3 * most :]


def arguments(counts: Sequence[int] = range(31)) -> st.SearchStrategy[dict[str, Any]]:
    """The arguments of a valid curve; `counts` holds the numbers of plateaus that it may have."""
    return _curves(counts, 0).map(lambda drawn: drawn[0])


def _step(word: int, total_steps: int, borders: list[int]) -> int:
    """A step near the border of a segment, between two, before the first or past the last."""
    rest, kind = divmod(word, 4)
    if kind == 0:
        which, gap = divmod(rest, 7)
        step = borders[which % len(borders)] + gap - 3
    elif kind == 1:
        step = rest % (total_steps + 1)
    elif kind == 2:
        step = -_magnitude(rest, 1, 2**31)
    else:
        step = total_steps + _magnitude(rest, 0, MAX_STEP - total_steps)
    return min(step, MAX_STEP)


def arguments_and_steps(
    counts: Sequence[int] = range(31), size: int = 48
) -> st.SearchStrategy[tuple[dict[str, Any], list[int]]]:
    """The arguments of a valid curve, and `size` int32 steps worth looking at."""

    def read(drawn: tuple[dict[str, Any], list[int]]) -> tuple[dict[str, Any], list[int]]:
        chosen, more = drawn
        borders = Oracle(**chosen).borders
        return chosen, [_step(word, chosen["total_steps"], borders) for word in more]

    return _curves(counts, size).map(read)
