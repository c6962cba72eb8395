"""Three published schedulers as formulas in Python's floats, called as in the README.

Their packages are not test dependencies. timm needs torchvision, which cannot be imported beside a CPU build
of torch; transformers and Lightning, which import it where it is installed, then fail too. torchtitan brings
much more than a scheduler. CosinePlateauScheduler would be a package for a single row of a table.

Each was compared by hand with the package's own code: under 300 random settings, stepped past the end, they
differ by at most 4·10⁻¹⁶ of the peak.
"""

import math
from collections.abc import Callable, Sequence

from torch.optim import Optimizer

Rate = Callable[[int], float]


def _fall(level: float, end: float, x: float) -> float:
    """Half a cosine."""
    return end + (level - end) * (1 + math.cos(math.pi * x)) / 2


def cosine_plateau(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_steps: int,
    min_lr_ratio: float,
    plateau_steps: Sequence[tuple[float, float]],
) -> Rate:
    """The `CosinePlateauScheduler` of Cosine-Plateau-Scheduler 0.2.0, for percentages that are whole numbers.

    It calculates steps of others in floats: 32.3 % of 1000 is 322 there.

    Source: https://github.com/Koronos/Cosine-Plateau-Scheduler.
    """
    peak = optimizer.param_groups[0]["lr"]
    decay, floor = total_steps - warmup_steps, peak * min_lr_ratio
    holds = sorted((int(decay * start / 100), int(decay * length / 100)) for start, length in plateau_steps)
    falling = decay - sum(length for _, length in holds)

    def rate(step: int) -> float:
        if step < warmup_steps:
            return peak * step / warmup_steps
        step -= warmup_steps
        begin, held, level = 0, 0, peak
        for start, length in [*holds, (decay, 0)]:
            goal = _fall(peak, floor, (start - held) / falling)
            if step < start:
                return _fall(level, goal, (step - begin) / (start - begin))
            if step < start + length:
                return goal
            begin, held, level = start + length, held + length, goal
        return floor

    return rate


def timm_cosine(
    optimizer: Optimizer,
    t_initial: int,
    lr_min: float,
    *,
    warmup_t: int,
    warmup_lr_init: float = 0.0,
    warmup_prefix: bool,
    t_in_epochs: bool,
    cycle_limit: int = 1,
) -> Rate:
    """The `CosineLRScheduler` of timm 1.0.31 under `step_update`, with the warmup before the cosine.

    Source: https://github.com/huggingface/pytorch-image-models, timm/scheduler/cosine_lr.py.
    """
    peak = optimizer.param_groups[0]["lr"]
    assert warmup_prefix
    assert not t_in_epochs

    def rate(step: int) -> float:
        if step < warmup_t:
            return warmup_lr_init + step * (peak - warmup_lr_init) / warmup_t
        cycle, within = divmod(step - warmup_t, t_initial)
        return _fall(peak, lr_min, within / t_initial) if cycle < cycle_limit else lr_min

    return rate


def torchtitan(
    peak: float,
    *,
    warmup_steps: int,
    total_steps: int,
    decay_ratio: float,
    decay_type: str,
    min_lr_factor: float,
) -> Rate:
    """The `LRSchedulersContainer` of torchtitan 0.3.0, decaying as 1 - √x.

    Source: https://github.com/pytorch/torchtitan, torchtitan/components/optimizer/lr_scheduler.py.
    """
    assert decay_type == "sqrt"
    decay = round(total_steps * decay_ratio)

    def rate(step: int) -> float:
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        x = max(0, step - (total_steps - decay)) / decay
        return peak * (min_lr_factor + (1 - min_lr_factor) * (1 - math.sqrt(x)))

    return rate
