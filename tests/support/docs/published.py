"""Published schedulers as formulas in Python floats, with the signatures used in docs/other_schedulers/.

Their packages are not test dependencies. timm needs torchvision, which cannot be imported alongside a CPU
build of torch; transformers and Lightning import torchvision if it is installed, and would then fail too.
torchtitan and Megatron-LM install much more than a scheduler. Cosine-Plateau-Scheduler would be a
dependency for a single section.

Each formula was compared manually with the code of its package: under 300 random settings, stepped past the
end, they differ by at most 4·10⁻¹⁶ of the peak.
"""

import math
from collections.abc import Callable, Sequence

from torch.optim import Optimizer

Formula = Callable[[int], float]
"""The learning rate as a function of the update, or of the samples or tokens consumed."""


def _cosine_decay(level: float, end: float, x: float) -> float:
    return end + (level - end) * (1 + math.cos(math.pi * x)) / 2


_DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: _cosine_decay(1.0, 0.0, x),
    "sqrt": lambda x: 1 - math.sqrt(x),
    "minus_sqrt": lambda x: 1 - math.sqrt(x),
}
"""Shapes that fall from 1 at x = 0 to 0 at x = 1, by their names in torchtitan and Megatron-LM."""


def cosine_plateau(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_steps: int,
    min_lr_ratio: float,
    plateau_steps: Sequence[tuple[float, float]],
) -> Formula:
    """Return the `CosinePlateauScheduler` of Cosine-Plateau-Scheduler 0.2.0.

    It computes steps from percentages in floating point: 32.3 % of 1000 is 322.

    Source: https://github.com/Koronos/Cosine-Plateau-Scheduler.
    """
    peak = optimizer.param_groups[0]["lr"]
    decay, floor = total_steps - warmup_steps, peak * min_lr_ratio
    plateaus = sorted(
        (int(decay * start / 100), int(decay * length / 100)) for start, length in plateau_steps
    )
    falling = decay - sum(length for _, length in plateaus)

    def lr(step: int) -> float:
        if step < warmup_steps:
            return peak * step / warmup_steps
        step -= warmup_steps
        begin, held, level = 0, 0, peak
        for start, length in [*plateaus, (decay, 0)]:
            plateau_level = _cosine_decay(peak, floor, (start - held) / falling)
            if step < start:
                return _cosine_decay(level, plateau_level, (step - begin) / (start - begin))
            if step < start + length:
                return plateau_level
            begin, held, level = start + length, held + length, plateau_level
        return floor

    return lr


def timm(
    kind: str,
    optimizer: Optimizer,
    *,
    warmup_t: int,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool,
    t_in_epochs: bool,
    t_initial: int = 0,
    lr_min: float = 0.0,
    power: float = 1.0,
    cycle_limit: int = 1,
    decay_t: int | Sequence[int] = 0,
    decay_rate: float = 1.0,
) -> Formula:
    """Return a scheduler of timm 1.0.31 under `step_update`.

    With `warmup_prefix` the warmup comes before the schedule, else in place of its first steps.
    "MultiStepLRScheduler" drops one step before each milestone, unlike torch's `MultiStepLR`.

    Source: https://github.com/huggingface/pytorch-image-models, timm/scheduler/.
    """
    peak = optimizer.param_groups[0]["lr"]
    assert not t_in_epochs

    def decay(step: int) -> float:
        if kind == "PolyLRScheduler":
            return lr_min + (peak - lr_min) * max(0.0, 1 - step / t_initial) ** power
        if kind == "CosineLRScheduler":
            cycle, within = divmod(step, t_initial)
            return _cosine_decay(peak, lr_min, within / t_initial) if cycle < cycle_limit else lr_min
        drops = step // decay_t if isinstance(decay_t, int) else sum(at <= step + 1 for at in decay_t)
        return peak * decay_rate**drops

    def lr(step: int) -> float:
        if step < warmup_t:
            return warmup_lr_init + step * (peak - warmup_lr_init) / warmup_t
        return decay(step - warmup_t if warmup_prefix else step)

    return lr


def torchtitan(
    peak: float,
    *,
    warmup_steps: int,
    total_steps: int,
    decay_ratio: float,
    decay_type: str,
    min_lr_factor: float,
) -> Formula:
    """Return the `LRSchedulersContainer` of torchtitan 0.3.0.

    Source: https://github.com/pytorch/torchtitan, torchtitan/components/optimizer/lr_scheduler.py.
    """
    shape = _DECAY_SHAPES[decay_type]
    decay = round(total_steps * decay_ratio)

    def lr(step: int) -> float:
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        if step <= total_steps - decay:
            return peak
        assert decay, "past the end of a run without a decay"
        x = (step - (total_steps - decay)) / decay
        return peak * (min_lr_factor + (1 - min_lr_factor) * shape(x))

    return lr


def megatron(
    optimizer: Optimizer,
    *,
    init_lr: float,
    max_lr: float,
    min_lr: float,
    lr_warmup_steps: int,
    lr_decay_steps: int,
    lr_decay_style: str,
    wsd_decay_steps: int = 0,
    lr_wsd_decay_style: str = "",
    **weight_decay_options: float | str,
) -> Formula:
    """Return the `OptimizerParamScheduler` of Megatron-LM at commit 00caa53, as a function of samples.

    With warmup W, length T, decay length D and the elapsed fraction x of the decay, the learning rate is

        init + (max - init)·samples/W    up to W
        max                              after that, forever if "constant", else until the decay begins
        max·√(W/samples), at least min   until T, for "inverse-square-root"; W and samples are at least 1
        min + (max - min)·S(x)           until T, x = (samples - W)/(T - W), or counted from T - D for "WSD"
        min                              past T

    Source: https://github.com/NVIDIA/Megatron-LM, megatron/core/optimizer_param_scheduler.py.
    """
    wsd = lr_decay_style == "WSD"
    decay = wsd_decay_steps if wsd else lr_decay_steps - lr_warmup_steps
    begin = lr_decay_steps - decay

    def lr(samples: int) -> float:
        if lr_warmup_steps and samples <= lr_warmup_steps:
            return init_lr + (max_lr - init_lr) * samples / lr_warmup_steps
        if lr_decay_style == "constant" or samples <= begin:
            return max_lr
        if samples > lr_decay_steps:
            return min_lr
        if lr_decay_style == "inverse-square-root":
            return max(min_lr, max_lr * math.sqrt(max(lr_warmup_steps, 1) / max(samples, 1)))
        remaining = _DECAY_SHAPES[lr_wsd_decay_style if wsd else lr_decay_style]((samples - begin) / decay)
        return min_lr + (max_lr - min_lr) * remaining

    return lr
