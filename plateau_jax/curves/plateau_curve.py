"""`PlateauCurve`: a warmup, and a decay with plateaus."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, final, get_args

from plateau_jax.arguments import checks
from plateau_jax.arguments.checks import MAX_STEP, Count, Message, Path
from plateau_jax.arguments.curve_warning import warn, warn_of_small_end
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.lengths import length_in_steps
from plateau_jax.numerics import Level, as_level, percent_of
from plateau_jax.shapes import known_shapes
from plateau_jax.table.exact_segments import ExactSegment, flat_segment

WarmupShape = Literal["linear", "cosine"]


@final
@dataclass(frozen=True)
class PlateauCurve(Curve, kind="plateau"):
    """A learning-rate curve with warmup, cosine decay and plateaus.

    The multiplier rises to 1 during the warmup, then falls to `min_lr_ratio` at `total_steps`. On a
    plateau it stays at the level that it has reached; after the plateau the decay continues.

    With W = `warmup_steps`, N = `total_steps` - W, r = `min_lr_ratio` and i = `init_lr_ratio`, the
    warmup (step < W) is one of

        linear    i + (1 - i)·step/W
        cosine    i + (1 - i)·(1 - cos(π·step/W))/2

    A plateau (p, d) starts s = floor(N·p/100) steps after the warmup and lasts l = floor(N·d/100)
    steps. Outside the plateaus the curve falls from a level a to the next level b:

        b + (a - b)·S(x),    x = the fraction of the steps from a to b that have passed

    with S by `decay_shape`:

        cosine     (1 + cos(π·x))/2
        linear     1 - x
        1-sqrt     1 - √x
        1-x^P      1 - x^P
        (1-x)^P    (1 - x)^P

    A plateau has the level that a single decay over the E = N - Σ l steps outside the plateaus has
    reached there. For the n-th plateau this is

        r + (1 - r)·S((sₙ - l₁ - … - lₙ₋₁)/E)

    From `total_steps` on the multiplier is r; before step 0 it is that of step 0. P is a decimal
    from 0.05 to 20, as in `"1-x^2"`. Without a warmup, `init_lr_ratio` has no effect.

    For warmup–stable–decay, use `StagedCurve.wsd`, or let the plateau start at 0 %.

    Sources: linear warmup, Goyal et al. 2017 (arXiv:1706.02677); half-cosine decay, SGDR,
    Loshchilov & Hutter 2017 (arXiv:1608.03983); linear decay to 0, Defazio et al. 2023
    (arXiv:2310.07831); 1-sqrt, Hägele et al. 2024 (arXiv:2405.18392).

    Every percentage and ratio is read as the decimal that you write: 32.3 % of 1000 is 323, not 322
    as in floating point. A number of steps may be text: `"10k"`, `"1.5M"` or `"2B"`. The arguments
    are also attributes, `warmup_steps` in steps.

    Args:
        total_steps: Number of steps of the whole curve, warmup included; 1 to 2³¹ - 1.
        warmup_steps: Steps from `init_lr_ratio` to 1, below `total_steps`; or a percentage of
            `total_steps`, such as `"2%"`, which the curve rounds down to steps. At step
            `warmup_steps` the curve is at the peak. The first update uses step 0: by default its
            learning rate is 0, and it changes no weight. For a warmup of (step + 1)/W write
            `PlateauCurve(total, warmup_steps=W - 1, init_lr_ratio=1 / W)`.
        plateaus: Pairs (start, duration) in percent, 0 to 100, of the steps after the warmup.
        absolute_plateaus: Pairs (first step, number of steps), counted from step 0 of the curve.
            You may pass both kinds of plateaus.
        min_lr_ratio: The multiplier at the end, 0 to 1.
        init_lr_ratio: The multiplier at step 0 if there is a warmup, 0 to 1.
        warmup_shape: `"linear"` or `"cosine"`.
        decay_shape: `"cosine"`, `"linear"`, `"1-sqrt"`, `"1-x^P"` or `"(1-x)^P"`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A value is out of range; plateaus overlap, run past the end or leave no step to
            decay; an unknown shape.

    Warns:
        CurveWarning: Percentages look like fractions of 1. A duration or a warmup above 0 % rounds
            to no step. `min_lr_ratio` is above 0 and below 1e-4, and so looks like a learning rate.

    >>> from plateau_jax import PlateauCurve
    >>> curve = PlateauCurve(1000, warmup_steps=100, plateaus=[(50, 20)], min_lr_ratio=0.1)
    >>> curve([0, 50, 550, 700, 5000])
    array([0.        , 0.5       , 0.37779245, 0.37779245, 0.1       ],
          dtype=float32)
    """

    total_steps: int
    warmup_steps: int
    plateaus: tuple[tuple[float, float], ...]
    absolute_plateaus: tuple[tuple[int, int], ...]
    min_lr_ratio: float
    init_lr_ratio: float
    warmup_shape: WarmupShape
    decay_shape: str

    # Written by hand, because the arguments have more types than the fields.
    def __init__(
        self,
        total_steps: Count,
        *,
        warmup_steps: Count = 0,
        plateaus: Sequence[tuple[float, float]] = (),
        absolute_plateaus: Sequence[tuple[Count, Count]] = (),
        min_lr_ratio: float = 0.0,
        init_lr_ratio: float = 0.0,
        warmup_shape: WarmupShape = "linear",
        decay_shape: str = "cosine",
    ) -> None:
        total = checks.count("total_steps", total_steps, 1, MAX_STEP)
        warmup = length_in_steps("warmup_steps", warmup_steps, total)
        if warmup >= total:
            limits = f"lie in 0 … total_steps - 1 = {total - 1}, so that a step is left to decay"
            raise ValueError(checks.must("warmup_steps", warmup, limits))

        in_percent = _check_percentages(plateaus)
        in_steps = _check_absolute(absolute_plateaus, warmup)
        lowest = checks.ratio("min_lr_ratio", min_lr_ratio)
        vars(self).update(
            total_steps=total,
            warmup_steps=warmup,
            plateaus=tuple(sorted(in_percent)),
            absolute_plateaus=tuple(sorted(in_steps)),
            min_lr_ratio=lowest,
            init_lr_ratio=checks.ratio("init_lr_ratio", init_lr_ratio),
            warmup_shape=checks.one_of("warmup_shape", warmup_shape, get_args(WarmupShape)),
            decay_shape=known_shapes.canonical_shape(
                "decay_shape", decay_shape, known_shapes.SHAPES_ALLOWING_ZERO
            ),
        )
        placed = place_plateaus(total, warmup, in_percent, in_steps)
        self._set_segments(_exact_segments(self, placed))

        _warn_of_small_plateaus(in_percent, total - warmup)
        warn_of_small_end(lowest)


def _exact_segments(curve: PlateauCurve, plateaus: list[tuple[int, int]]) -> Iterator[ExactSegment]:
    """Yield the segments: warmup, decay, (plateau, decay) for each plateau, end.

    `plateaus` are valid pairs (first step, number of steps), sorted.
    """
    shape = curve.decay_shape
    peak = Level(1)
    lowest = as_level(curve.min_lr_ratio)
    begin = curve.warmup_steps
    yield ExactSegment("warmup", 0, begin, as_level(curve.init_lr_ratio), peak, curve.warmup_shape)

    decaying = curve.total_steps - begin - sum(length for _, length in plateaus)
    elapsed = 0  # of the decaying steps
    level = peak
    for first, length in plateaus:
        elapsed += first - begin
        reached = known_shapes.level_between(shape, peak, lowest, elapsed, decaying)
        yield ExactSegment("decay", begin, first - begin, level, reached, shape)
        yield flat_segment("plateau", first, length, reached)
        begin = first + length
        level = reached

    yield ExactSegment("decay", begin, curve.total_steps - begin, level, lowest, shape)
    yield flat_segment("end", curve.total_steps, 0, lowest)


def _check_percentages(plateaus: Any) -> list[tuple[float, float]]:
    """Check pairs (start, duration) in percent of the steps after the warmup."""
    checked: list[tuple[float, float]] = []
    for path, start, duration in checks.pairs("plateaus", plateaus, "(start, duration) in percent"):
        pair = checks.number((*path, "start"), start), checks.number((*path, "duration"), duration)
        if min(pair) < 0 or max(pair) > 100:
            raise ValueError(
                checks.must(path, pair, "lie in 0 … 100 %; for steps use absolute_plateaus")
            )
        checked.append(pair)
    return checked


def _check_absolute(plateaus: Any, warmup_steps: int) -> list[tuple[int, int]]:
    """Check pairs (start, length) in steps."""
    checked: list[tuple[int, int]] = []
    for path, start, length in checks.pairs(
        "absolute_plateaus", plateaus, "(start, length) in steps"
    ):
        start = checks.count((*path, "start"), start, 0, MAX_STEP)
        length = checks.count((*path, "length"), length, 0, MAX_STEP)
        if start < warmup_steps:
            too_early = f"not start before the warmup ends, at step {warmup_steps}"
            raise ValueError(checks.must(path, (start, length), too_early))
        checked.append((start, length))
    return checked


class _Plateau(NamedTuple):
    """A plateau in steps, and the argument that describes it."""

    begin: int
    length: int
    path: Path
    pair: tuple[float, float]


def place_plateaus(
    total_steps: int,
    warmup_steps: int,
    plateaus: Sequence[tuple[float, float]],
    absolute_plateaus: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Return (first step, number of steps) of every plateau, sorted.

    Raises:
        ValueError: Plateaus overlap, run past the end or leave no step to decay.
    """
    after_warmup = total_steps - warmup_steps
    placed: list[_Plateau] = []
    for index, pair in enumerate(absolute_plateaus):
        first, length = pair
        placed.append(_Plateau(first, length, ("absolute_plateaus", index), pair))
    for index, pair in enumerate(plateaus):
        start, duration = pair
        first = warmup_steps + percent_of(after_warmup, as_level(start))
        length = percent_of(after_warmup, as_level(duration))
        placed.append(_Plateau(first, length, ("plateaus", index), pair))
    placed.sort()

    # Compared in steps, after rounding: of 1000 steps, (0, 30.04) ends before step 300, and
    # (30.03, 10) starts there.
    for plateau, following in pairwise(placed):
        before = f"before the next plateau starts, at step {following.begin}"
        _check_end(plateau, following.begin, before)
    if placed:
        _check_end(placed[-1], total_steps, f"by total_steps = {total_steps}")
    if sum(plateau.length for plateau in placed) >= after_warmup:
        rest = f"must leave at least one of the {after_warmup} steps after the warmup to decay"
        advice = "for a curve that never decays use StagedCurve"
        raise ValueError(Message(placed[-1].path[:1], f" {rest}; {advice}"))
    return [(plateau.begin, plateau.length) for plateau in placed]


def _check_end(plateau: _Plateau, last: int, deadline: str) -> None:
    """Raise a ValueError if a plateau ends after step `last`, which `deadline` puts in words."""
    end = plateau.begin + plateau.length
    if end > last:
        span = f"it lasts from step {plateau.begin} to step {end}"
        advice = "the second number is the length, not the end"
        raise ValueError(
            checks.must(plateau.path, plateau.pair, f"end {deadline}: {span}; {advice}")
        )


def _warn_of_small_plateaus(plateaus: Sequence[tuple[float, float]], after_warmup: int) -> None:
    """Warn if the percentages look like fractions, or a duration rounds to no step."""
    if not plateaus:
        return
    percentages = list(chain.from_iterable(plateaus))
    if max(percentages) <= 1 and any(0 < percentage < 1 for percentage in percentages):
        text = "look like fractions of 1, but are percentages. Multiply them by 100"
        warn(Message("plateaus", f" = {checks.short_repr(sorted(plateaus))} {text}"))
        return
    for _, duration in plateaus:
        if duration and not percent_of(after_warmup, as_level(duration)):
            steps = checks.plural(after_warmup, "step")
            text = f"a duration of {duration} % of {steps} rounds down to 0"
            advice = "Write a longer one, or absolute_plateaus in steps"
            warn(Message("plateaus", f": {text}. {advice}"))
            return
