"""Learning rates of trainers as formulas of their options, as in docs/other_schedulers/.

Each formula was written after reading the trainer's source at the commit that its page names. It returns the
multiplier of an update, counted from 0, in Python floats. It was then compared manually with the code of the
trainer: under 25 to 400 random settings, many of them without a warmup, a constant phase or a decay, they
differ by at most 4·10⁻¹⁶ of the peak at every update.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

Multiplier = Callable[[int], float | list[float]]
"""The multiplier of an update; a list has one for each parameter group."""


def nanochat(
    num_iterations: int, warmup_steps: int, warmdown_ratio: float, final_lr_frac: float
) -> Multiplier:
    """Rise as (step + 1)/W; in the last D steps, fall in a line to the last level."""
    falling = round(warmdown_ratio * num_iterations)

    def multiplier(update: int) -> float:
        if update < warmup_steps:
            return (update + 1) / warmup_steps
        left = (num_iterations - update) / falling if update > num_iterations - falling else 1.0
        return final_lr_frac + (1 - final_lr_frac) * left

    return multiplier


def nanochat_rl(num_iterations: int) -> Multiplier:
    return lambda update: 1 - update / num_iterations


def nanochat_momentum(num_iterations: int, warmdown_ratio: float) -> Callable[[int], float]:
    """Return Muon's momentum: 0.85 to 0.97 in 400 updates, and to 0.90 while the learning rate falls."""
    falling = round(warmdown_ratio * num_iterations)

    def momentum(update: int) -> float:
        if update < 400:
            return 0.85 + 0.12 * update / 400
        return 0.97 - 0.07 * max(0, update - (num_iterations - falling)) / max(1, falling)

    return momentum


def modded_nanogpt(
    num_scheduled_iterations: int,
    num_extension_iterations: int,
    lr_muls: Sequence[float],
    final_lr_mul: float,
    cooldown_frac: float,
) -> Multiplier:
    """Scale the learning rate in each third of the run; move in a line to the last factor in the cooldown."""
    n = num_scheduled_iterations
    begin = int(n * (1 - cooldown_frac))

    def multiplier(update: int) -> float:
        x = min(1.0, max(0.0, (update - begin) / (n - begin)))
        stage = lr_muls[sum(update >= round(third * n / 3) for third in (1, 2))]
        return ((1 - x) * stage + x * final_lr_mul) / max(lr_muls)

    return multiplier


def nanogpt(
    learning_rate: float, min_lr: float, warmup_iters: int, lr_decay_iters: int, max_iters: int = 0
) -> Multiplier:
    """Rise as (update + 1)/(W + 1), then fall along a cosine, whichever update is the last."""
    low = min_lr / learning_rate

    def multiplier(update: int) -> float:
        if update < warmup_iters:
            return (update + 1) / (warmup_iters + 1)
        return _warmup_cosine(update, warmup_iters, lr_decay_iters, low)

    return multiplier


def litgpt_pretrain(
    devices: int,
    max_tokens: int,
    max_seq_length: int,
    global_batch_size: int,
    micro_batch_size: int,
    lr_warmup_steps: int,
    lr: float,
    min_lr: float,
    class_path: str = "",
) -> Multiplier:
    """Return the multiplier of a micro-batch."""
    total = max_tokens // devices // (micro_batch_size * max_seq_length)
    warmup = lr_warmup_steps * (global_batch_size // devices // micro_batch_size)
    return lambda step: _warmup_cosine(step, warmup, total, min_lr / lr)


def litgpt_finetune(lr_warmup_steps: int, max_steps: int, lr: float, class_path: str = "") -> Multiplier:
    return lambda update: _warmup_cosine(update, lr_warmup_steps, max_steps, 0.0)


def maxtext(
    lr_schedule_type: str,
    learning_rate: float,
    learning_rate_schedule_steps: int,
    steps: int,
    warmup_steps_fraction: float,
    learning_rate_final_fraction: float,
    wsd_decay_steps_fraction: float = 1.0,
    wsd_decay_style: str = "cosine",
) -> Multiplier:
    """Decay in the last D steps of the schedule, of which the last one has the final level; 0 after them."""
    n = learning_rate_schedule_steps
    warmup = int(n * warmup_steps_fraction)
    decay = int(n * wsd_decay_steps_fraction) if lr_schedule_type == "wsd" else n - warmup

    def multiplier(update: int) -> float:
        if update >= n:
            return 0.0
        if update < warmup:
            return update / warmup
        x = max(0, update - (n - decay)) / (decay - 1) if decay > 1 else float(update >= n - decay)
        fallen = x if wsd_decay_style == "linear" else (1 - math.cos(math.pi * x)) / 2
        return 1 - (1 - learning_rate_final_fraction) * fallen

    return multiplier


def dinov2(
    OFFICIAL_EPOCH_LENGTH: int,
    epochs: int,
    warmup_epochs: int,
    freeze_last_layer_epochs: int,
    base_lr: float,
    batch_size_per_gpu: int,
    min_lr: float,
    world_size: int,
    scaling_rule: str = "",
) -> Multiplier:
    """Rise in W evenly spaced values from 0 to 1, both included, then fall along a cosine from 1."""
    total, warmup = epochs * OFFICIAL_EPOCH_LENGTH, warmup_epochs * OFFICIAL_EPOCH_LENGTH
    last = min_lr / (base_lr * math.sqrt(batch_size_per_gpu * world_size / 1024))

    def multiplier(update: int) -> list[float]:
        if update < warmup:
            value = update / (warmup - 1) if update else 0.0
        else:
            x = (update - warmup) / (total - warmup) if update < total else 1.0
            value = last + (1 - last) * (1 + math.cos(math.pi * x)) / 2
        return [value, value if update >= freeze_last_layer_epochs * OFFICIAL_EPOCH_LENGTH else 0.0]

    return multiplier


def open_clip(
    lr_scheduler: str,
    lr: float,
    warmup: int,
    epochs: int,
    updates: int,
    epochs_cooldown: int = 0,
    lr_cooldown_end: float = 0.0,
    lr_cooldown_power: float = 1.0,
) -> Multiplier:
    total, cooldown = epochs * updates, epochs_cooldown * updates

    def multiplier(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        if lr_scheduler == "cosine":
            return (1 + math.cos(math.pi * (update - warmup) / (total - warmup))) / 2
        left = min(1.0, (total - update) / cooldown) if cooldown else 1.0
        return lr_cooldown_end / lr + (1 - lr_cooldown_end / lr) * left**lr_cooldown_power

    return multiplier


def lingua(
    scheduler: str,
    steps: int,
    lr: float,
    warmup: int,
    lr_min_ratio: float,
    exp_factor: float = 0.5,
    decay_fraction: float = 0.1,
    cycle_length: float = 1.0,
) -> Multiplier:
    def multiplier(update: int) -> float:
        if update < warmup:
            return update / warmup
        if scheduler == "cosine":
            return _warmup_cosine(update, warmup, steps, lr_min_ratio)
        if scheduler == "linear":
            return 1 - (1 - lr_min_ratio) * min(1.0, (update - warmup) / (steps - warmup))
        if scheduler == "inv_sqrt":
            return max(lr_min_ratio, (warmup / update) ** exp_factor)
        cycle = int(steps * cycle_length)
        end = (update // cycle + 1) * cycle
        decay = int(end * decay_fraction)
        x = max(0, update - (end - decay)) / decay if decay else 0.0
        return 1 / (1 + x * (1 / lr_min_ratio - 1))

    return multiplier


def levanter(
    num_train_steps: int,
    learning_rate: float,
    min_lr_ratio: float,
    warmup: int,
    lr_schedule: str = "",
    decay: int | None = None,
    cycles: int = 1,
    rewarmup: int = 0,
    timescale: int = 10_000,
    **kind_of: str,
) -> Multiplier:
    ends = [int(num_train_steps / cycles * number) for number in range(1, cycles)] + [num_train_steps]
    kind = kind_of.get("type", lr_schedule)

    def multiplier(update: int) -> float:
        cycle = min(sum(update >= end for end in ends), cycles - 1)
        begin, low = (ends[cycle - 1], min_lr_ratio) if cycle else (0, 0.0)
        rise = rewarmup if cycle else warmup
        if update - begin < rise:
            return low + (1 - low) * (update - begin) / rise
        if kind == "inv_sqrt":
            return max(min_lr_ratio, min(1.0, math.sqrt(timescale / max(1, update - begin))))
        length = ends[cycle] - begin - rise if decay is None else decay
        elapsed = update - (ends[cycle] - length)
        if elapsed < 0:
            return 1.0
        if kind == "inv":
            return max(min_lr_ratio, 1 / (1 + (1 / min_lr_ratio - 1) * max(1, elapsed) / length))
        x = min(1.0, elapsed / length)
        fallen = x if kind == "linear" else (1 - math.cos(math.pi * x)) / 2
        return 1 - (1 - min_lr_ratio) * fallen

    return multiplier


def nanotron(
    learning_rate: float,
    lr_warmup_style: str,
    lr_warmup_steps: int,
    lr_decay_starting_step: int,
    lr_decay_steps: int,
    lr_decay_style: str,
    min_decay_lr: float,
) -> Multiplier:
    """Return the multipliers of two groups, the first of which has half the peak.

    Update 0 has learning rate 0, even without a warmup.
    """
    assert lr_warmup_style == "linear"
    shapes: dict[str, Callable[[float], float]] = {
        "linear": lambda x: 1 - x,
        "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
        "1-sqrt": lambda x: 1 - math.sqrt(x),
    }

    def multiplier(update: int) -> list[float]:
        if update <= lr_warmup_steps:
            return [update / max(lr_warmup_steps, 1)] * 2
        left = shapes[lr_decay_style](min(1.0, max(0, update - lr_decay_starting_step) / lr_decay_steps))
        lows = [min_decay_lr / peak for peak in (learning_rate / 2, learning_rate)]
        return [low + (1 - low) * left for low in lows]

    return multiplier


FORMULAS: dict[str, Callable[..., Multiplier]] = {
    "nanoGPT, train.py": nanogpt,
    "nanoGPT, lr_decay_iters above max_iters": nanogpt,
    "nanochat, base_train": nanochat,
    "nanochat, chat_rl": nanochat_rl,
    "modded-nanogpt, train_gpt.py (2026)": modded_nanogpt,
    "litgpt pretrain": litgpt_pretrain,
    "litgpt finetune, finetune_lora, finetune_adapter": litgpt_finetune,
    "MaxText, lr_schedule_type: cosine": maxtext,
    "MaxText, lr_schedule_type: wsd": maxtext,
    "DINOv2, CosineScheduler": dinov2,
    "open_clip, --lr-scheduler cosine": open_clip,
    "open_clip, --lr-scheduler const": open_clip,
    "open_clip, --lr-scheduler const-cooldown": open_clip,
    "lingua, scheduler: cosine": lingua,
    "lingua, scheduler: linear": lingua,
    "lingua, scheduler: inv_sqrt": lingua,
    "lingua, scheduler: wsd": lingua,
    "levanter, lr_schedule: cosine or linear": levanter,
    "levanter, cycles": levanter,
    "levanter, lr_schedule: inv_sqrt": levanter,
    "levanter, lr_schedule: inv": levanter,
    "nanotron, lr_decay_style": nanotron,
}
"""The formula of each section whose "before" is a configuration, by its heading."""

COMPOSER_SCHEDULERS = [
    "ConstantWithWarmupScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "ExponentialScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepWithWarmupScheduler",
    "PolynomialWithWarmupScheduler",
]


def composer(kind: str, peak: float, **settings: Any) -> Callable[[int], float]:
    """Return a scheduler of composer at commit 6405188, as a function of the update.

    The trainer calls it before it counts the batch: update k uses the time max(0, k - 1).

    Source: https://github.com/mosaicml/composer, composer/optim/scheduler.py and trainer/trainer.py.
    """

    def batches(key: str) -> int:
        number, unit = settings[key][:-2], settings[key][-2:]
        assert unit == "ba"
        return int(number)

    def multiplier(time: int) -> float:
        warmup = batches("t_warmup") if "t_warmup" in settings else 0
        if time < warmup:
            return time / warmup
        if kind == "ExponentialScheduler":
            return settings["gamma"] ** (time / batches("decay_period"))
        if kind == "MultiStepWithWarmupScheduler":
            passed = [time >= int(milestone[:-2]) for milestone in settings["milestones"]]
            return settings["gamma"] ** sum(passed)
        low = settings.get("alpha_f", 0.0)
        if kind == "CosineAnnealingWarmRestartsScheduler":
            x = time % batches("t_0") / batches("t_0")
        else:
            x = min(1.0, (time - warmup) / (batches("t_max") - warmup)) if batches("t_max") > warmup else 0.0
        left = {
            "ConstantWithWarmupScheduler": lambda: 1.0,
            "LinearWithWarmupScheduler": lambda: 1 - x,
            "PolynomialWithWarmupScheduler": lambda: (1 - x) ** settings["power"],
        }.get(kind, lambda: (1 + math.cos(math.pi * x)) / 2)
        return low + (1 - low) * left()

    return lambda update: peak * multiplier(max(0, update - 1))


def _warmup_cosine(step: int, warmup: int, total: int, low: float) -> float:
    """Rise in a line from 0 to 1 at `warmup`, then fall along half a cosine to `low` at `total`."""
    if step < warmup:
        return step / warmup
    x = min(1.0, (step - warmup) / (total - warmup))
    return low + (1 - low) * (1 + math.cos(math.pi * x)) / 2
