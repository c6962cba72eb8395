"""Hypothesis strategies: curves with everything that may be awkward about them, and steps."""

from decimal import Decimal
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from support.oracle import Oracle, share_of

MAX_STEP = 2**31 - 1
SMALLEST_NORMAL = 2.0**-126


def magnitudes(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers from `low` to `high`, every order of magnitude alike, with both ends."""
    width = high - low
    by_size = st.integers(0, width.bit_length()).flatmap(lambda bits: st.integers(0, 2**bits - 1))
    return st.one_of(by_size.map(lambda gap: low + min(gap, width)), st.sampled_from((low, high)))


def _number(value: Decimal) -> float:
    return int(value) if value == int(value) else float(value)


# As many digits as keep start + duration, in decimals, within what a float prints.
percentages = st.one_of(
    st.integers(0, 100).map(Decimal),
    st.integers(0, 1000).map(lambda tenths: Decimal(tenths) / 10),
    st.integers(0, 10**14).map(lambda parts: Decimal(parts) / 10**12),
)

ratios = st.one_of(
    st.sampled_from((0, 1, 0.0, 1.0, 0.1, 0.5, 1 / 3, 1e-6, 1e-12, 1e-30, SMALLEST_NORMAL, 1 - 2.0**-53)),
    st.floats(0, 1).filter(lambda ratio: ratio == 0 or ratio >= SMALLEST_NORMAL),
    st.integers(0, 1000).map(lambda parts: parts / 1000),
)


@st.composite
def arguments(draw: st.DrawFn, counts: st.SearchStrategy[int] | None = None) -> dict[str, Any]:
    """The arguments of a valid curve; `counts` says how many plateaus it may have."""
    total = draw(magnitudes(1, MAX_STEP))
    warmup = draw(st.one_of(st.just(0), magnitudes(0, total - 1)))
    after_warmup = total - warmup
    count = draw(st.integers(0, 30) if counts is None else counts)
    cuts = sorted(draw(st.lists(percentages, min_size=2 * count, max_size=2 * count)))
    if count and draw(st.booleans()):
        cuts[0] = Decimal(0)
    if count and draw(st.booleans()):
        cuts[-1] = Decimal(100)

    relative, absolute, held = [], [], 0
    starts = [warmup + share_of(after_warmup, _number(cut)) for cut in cuts[::2]]
    for index, (start, end) in enumerate(zip(cuts[::2], cuts[1::2], strict=True)):
        if draw(st.booleans()):
            pair = _number(start), _number(end - start)
            length = share_of(after_warmup, pair[1])
            relative.append(pair)
        else:
            room = (starts[index + 1] if index + 1 < count else total) - starts[index]
            length = draw(magnitudes(0, room))
            absolute.append((starts[index], length))
        held += length
    assume(held < after_warmup)
    return {
        "total_steps": total,
        "warmup_steps": warmup,
        "plateaus": draw(st.permutations(relative)),
        "absolute_plateaus": draw(st.permutations(absolute)),
        "min_lr_ratio": draw(ratios),
        "init_lr_ratio": draw(ratios),
        "warmup": draw(st.sampled_from(("linear", "cosine"))),
        "decay": draw(st.sampled_from(("cosine", "linear"))),
    }


def steps(total_steps: int, borders: list[int]) -> st.SearchStrategy[int]:
    """Steps near the borders of segments, between them, before the first and past the last."""
    near = st.builds(int.__add__, st.sampled_from(borders), st.integers(-3, 3))
    within = st.integers(0, total_steps)
    outside = st.one_of(st.integers(-(2**31), -1), st.integers(total_steps, MAX_STEP))
    return st.one_of(near, within, outside).filter(lambda step: -(2**31) <= step <= MAX_STEP)


@st.composite
def arguments_and_steps(
    draw: st.DrawFn, counts: st.SearchStrategy[int] | None = None, size: int = 48
) -> tuple[dict[str, Any], list[int]]:
    """The arguments of a valid curve, and `size` int32 steps worth looking at."""
    chosen = draw(arguments(counts))
    step = steps(chosen["total_steps"], Oracle(**chosen).borders)
    return chosen, draw(st.lists(step, min_size=size, max_size=size))
