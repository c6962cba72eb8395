"""OLMo-core's schedulers as formulas, with the signatures used in docs/other_schedulers/olmo_core.md.

Each takes the peak, the tokens so far and the tokens of the run. Each was written after reading the code of
OLMo-core 2.6.0, src/olmo_core/optim/scheduler.py, and compared manually with it: under 300 random settings
they differ by at most 6·10⁻¹⁶ of the peak. train/trainer.py adds the tokens of a batch before its update.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

GetLr = Callable[[float, int, int], float]
"""The learning rate of the peak, the tokens so far, and the tokens of the run."""


def _line(a: float, b: float, x: float) -> float:
    return a + (b - a) * x


def _half_cosine(a: float, b: float, x: float) -> float:
    return b + (a - b) * (1 + math.cos(math.pi * x)) / 2


_SHAPES = {"linear": _line, "cosine": _half_cosine}


def olmo(
    kind: str,
    *,
    units: str,
    warmup: int,
    warmup_min_lr: float = 0.0,
    alpha_f: float = 0.0,
    b: float = -0.5,
    decay: int = 0,
    decay_fraction: None = None,
    decay_min_lr: float = 0.0,
) -> GetLr:
    """Return a scheduler with a warmup.

    With warmup W, length T, decay length D and x = (tokens - W)/(T - W), the learning rate is

        min + (peak - min)·tokens/W                      before W
        alpha·peak + (peak - alpha·peak)·S(x)            until T, for "CosWithWarmup", "LinearWithWarmup"
        peak                                             for "ConstantWithWarmup", and for "WSD" until T - D
        alpha·peak + (peak - alpha·peak)·√(W/tokens)     for "InvSqrtWithWarmup"
        peak·(tokens/W)ᵇ                                 for "PowerLR", until T - D
        last + (level - last)·(T - tokens)/D             after T - D, where the level was reached, for
                                                         "WSD", "PowerLR", "CosWithWarmupAndLinearDecay"
    """
    assert (units, decay_fraction) == ("tokens", None)

    def before_decay(peak: float, tokens: int, total: int) -> float:
        if tokens < warmup:
            return _line(warmup_min_lr, peak, tokens / warmup)
        if kind in ("ConstantWithWarmup", "WSD"):
            return peak
        if kind == "InvSqrtWithWarmup":
            return _line(peak * alpha_f, peak, math.sqrt(warmup / tokens))
        if kind == "PowerLR":
            return peak * (tokens / warmup) ** b
        x = (tokens - warmup) / (total - warmup) if tokens < total else 1.0
        return _SHAPES["linear" if kind == "LinearWithWarmup" else "cosine"](peak, peak * alpha_f, x)

    def lr(peak: float, tokens: int, total: int) -> float:
        begin = total - decay
        if not decay or tokens < begin:
            return before_decay(peak, tokens, total)
        return _line(before_decay(peak, begin, total), decay_min_lr, (tokens - begin) / decay)

    return lr


def wsds(
    *,
    units: str,
    period_lengths: Sequence[int],
    period_lr_multipliers: Sequence[float],
    warmup: int,
    warmup_min_lr: float,
    decay: int,
    decay_min_lr: float,
) -> GetLr:
    """Return `WSDS`: periods with a peak each, which end in a line. The end of a period belongs to it."""
    assert units == "tokens"
    ends = [0, *accumulate(period_lengths)]

    def lr(peak: float, tokens: int, _: int) -> float:
        if tokens < warmup:
            return _line(warmup_min_lr, peak * period_lr_multipliers[0], tokens / warmup)
        for (begin, end), multiplier in zip(pairwise(ends), period_lr_multipliers, strict=True):
            if begin < tokens <= end or tokens == 0:
                return _line(decay_min_lr, peak * multiplier, min(1.0, (end - tokens) / decay))
        return decay_min_lr

    return lr


def composable(
    *, units: str, stages: Sequence[SimpleNamespace], override_decay: SimpleNamespace | None = None
) -> GetLr:
    """Return `ComposableScheduler`: stages, each from where the previous one ended."""
    assert units == "tokens"

    def main_lr(peak: float, tokens: int, _: int) -> float:
        level = peak
        for stage in stages:
            target = _target(stage, peak)
            begin = getattr(stage, "start_lr", level)
            if tokens < stage.duration:
                return _SHAPES[getattr(stage, "shape", "linear")](begin, target, tokens / stage.duration)
            tokens, level = tokens - stage.duration, target
        return level

    return _with_override(main_lr, override_decay)


def sequential(
    *,
    units: str,
    schedulers: Sequence[GetLr],
    schedulers_max: Sequence[int],
    override_decay: SimpleNamespace | None = None,
) -> GetLr:
    """Return `SequentialScheduler`: the peak of each is the final learning rate of the one before."""
    assert units == "tokens"

    def main_lr(peak: float, tokens: int, total: int) -> float:
        for scheduler, length in zip(schedulers, schedulers_max, strict=False):
            if tokens <= length:
                return scheduler(peak, tokens, min(total, length))
            peak, tokens, total = scheduler(peak, length, length), tokens - length, total - length
        return schedulers[-1](peak, tokens, total)

    return _with_override(main_lr, override_decay)


def _with_override(main_lr: GetLr, override: SimpleNamespace | None) -> GetLr:
    """Leave a schedule at `override.start`, from the learning rate that it has there."""

    def lr(peak: float, tokens: int, total: int) -> float:
        if override is None or tokens < override.start:
            return main_lr(peak, tokens, total)
        x = min(1.0, (tokens - override.start) / override.duration)
        shape = _SHAPES[getattr(override, "shape", "linear")]
        return shape(main_lr(peak, override.start, total), _target(override, peak), x)

    return lr


def _target(stage: SimpleNamespace, peak: float) -> float:
    return stage.end_lr if hasattr(stage, "end_lr") else peak * stage.end_lr_fraction


_WITH_WARMUP = [
    *("CosWithWarmup", "LinearWithWarmup", "ConstantWithWarmup", "WSD", "InvSqrtWithWarmup", "PowerLR"),
    "CosWithWarmupAndLinearDecay",
]


OLMO_CORE: dict[str, Any] = {
    **{kind: partial(olmo, kind) for kind in _WITH_WARMUP},
    "WSDS": wsds,
    "ComposableScheduler": composable,
    "ComposableSchedulerStage": SimpleNamespace,
    "ComposableSchedulerStageType": SimpleNamespace(linear="linear", cosine="cosine"),
    "OverrideDecay": SimpleNamespace,
    "SequentialScheduler": sequential,
    "SchedulerUnits": SimpleNamespace(tokens="tokens"),
}
"""Stand-ins for the names of olmo_core.optim.scheduler."""
