"""Values for the names of docs/other_schedulers/, under which `record` runs the originals.

Together the rows have every corner: no warmup, one of a single update, no constant phase, no decay, a run of
one update, lengths that divide nothing, a floor of 0, a run that is cut inside its warmup.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from support.docs.other_schedulers import Pair, Settings


def _rows(**columns: tuple[Any, ...]) -> list[Settings]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


COMMON = _rows(
    peak=(0.0003, 0.7, 1.0, 0.001, 0.02, 0.1),
    start=(3e-06, 0.07, 0.5, 0.001, 0.0, 0.05),
    floor=(3e-05, 0.0, 0.25, 1e-06, 0.019, 0.01),
    total=(17, 17, 13, 16, 17, 1),
    warmup=(5, 0, 1, 4, 2, 0),
    decay=(4, 4, 12, 0, 3, 1),
    stop=(11, 16, 5, 3, 17, 1),
    period=(6, 17, 1, 5, 4, 1),
    cycles=(3, 1, 2, 2, 1, 1),
    first=(7, 0, 1, 5, 9, 1),
    second=(12, 18, 2, 16, 10, 3),
    factor=(0.5, 0.1, 0.75, 0.3, 0.9, 0.5),
    gamma=(0.9, 0.5, 0.97, 0.8, 0.99, 0.5),
    power=(2, 0.5, 1, 4, 0.25, 2.5),
    shape=("cosine", "1-sqrt", "linear", "cosine", "1-sqrt", "linear"),
    batch=(3, 5, 1, 4, 2, 8),
    length=(7, 1, 3, 2, 5, 4),
    periods=([11, 6], [17], [13], [16], [6, 4, 7], [1]),
    multipliers=([1.0, 0.7], [0.9], [1.0], [1.0], [0.98, 1.0, 0.96], [1.0]),
    plateaus=([(50, 30), (85, 10)], [], [(0, 99)], [(0, 10), (30, 25), (90, 10)], [(33, 33)], []),
)
"""Values for the pages whose originals are programs."""

PAGES: dict[str, list[Settings]] = {
    "nanogpt": _rows(
        learning_rate=(0.0006, 0.3, 1.0, 0.001, 0.001),
        min_lr=(6e-05, 0.0, 0.5, 0.0001, 0.0001),
        warmup_iters=(7, 0, 1, 8, 0),
        lr_decay_iters=(23, 12, 9, 9, 1),
        max_iters=(15, 11, 0, 4, 0),
    ),
    "nanochat": _rows(
        num_iterations=(23, 16, 11, 17, 1),
        warmup_steps=(5, 0, 1, 8, 0),
        warmdown_ratio=(0.65, 1.0, 0.0, 0.5, 1.0),
        final_lr_frac=(0.05, 0.0, 0.5, 0.1, 0.1),
    ),
    "litgpt": _rows(
        devices=(2, 1, 1, 3),
        max_tokens=(697, 52, 14, 51),
        max_seq_length=(5, 1, 1, 1),
        global_batch_size=(24, 4, 1, 12),
        micro_batch_size=(3, 4, 1, 1),
        lr_warmup_steps=(2, 0, 1, 4),
        max_steps=(19, 2, 2, 5),
        lr=(0.0003, 0.1, 0.1, 0.001),
        min_lr=(3e-05, 0.0, 0.05, 1e-05),
    ),
    "maxtext": _rows(
        learning_rate=(0.0003, 0.5, 1.0, 0.001, 0.001),
        learning_rate_schedule_steps=(23, 16, 12, 11, 1),
        steps=(27, 16, 13, 7, 3),
        warmup_steps_fraction=(0.2, 0.0, 0.5, 0.9, 0.0),
        learning_rate_final_fraction=(0.1, 0.0, 0.5, 0.1, 0.1),
        wsd_decay_steps_fraction=(0.3, 1.0, 0.0, 0.1, 0.0),
        wsd_decay_style=("linear", "cosine", "linear", "cosine", "cosine"),
    ),
    "dinov2": _rows(
        OFFICIAL_EPOCH_LENGTH=(5, 3, 1, 4),
        epochs=(5, 4, 9, 3),
        warmup_epochs=(2, 0, 1, 3),
        freeze_last_layer_epochs=(1, 0, 0, 2),
        base_lr=(0.004, 0.1, 1.0, 0.01),
        batch_size_per_gpu=(64, 1, 1024, 32),
        world_size=(8, 1, 3, 32),
        min_lr=(1e-06, 0.0, 0.5, 0.001),
        weight_decay=(0.04, 0.0, 0.2, 0.1),
        weight_decay_end=(0.4, 0.1, 0.3, 0.1),
    ),
    "open_clip": _rows(
        lr=(0.0005, 0.1, 1.0, 0.001, 0.001),
        warmup=(5, 0, 1, 6, 0),
        epochs=(6, 3, 11, 4, 1),
        updates=(4, 5, 1, 3, 1),
        epochs_cooldown=(3, 3, 0, 2, 1),
        lr_cooldown_end=(5e-06, 0.0, 0.3, 0.0001, 0.0001),
        lr_cooldown_power=(1.0, 0.5, 2.0, 2.5, 1.0),
    ),
    "lingua": _rows(
        steps=(24, 15, 21, 13, 13),
        lr=(0.0003, 0.1, 1.0, 0.001, 0.001),
        warmup=(5, 0, 1, 6, 6),
        lr_min_ratio=(0.1, 0.01, 0.5, 0.0, 0.3),
        exp_factor=(0.5, 1.0, 2.0, 0.75, 0.25),
        decay_fraction=(0.2, 0.0, 0.25, 0.5, 0.54),
        cycle_length=(0.5, 1.0, 1 / 3, 1.0, 1.0),
    ),
    "levanter": _rows(
        num_train_steps=(25, 17, 22, 15, 11),
        learning_rate=(0.0006, 1.0, 0.1, 0.001, 0.001),
        min_lr_ratio=(0.1, 0.0, 0.5, 0.2, 0.01),
        warmup=(4, 0, 2, 5, 6),
        decay=(5, 17, 3, 2, 2),
        lr_schedule=("cosine", "linear", "linear", "cosine", "cosine"),
        timescale=(8, 1, 2, 21, 6),
        cycles=(2, 1, 3, 2, 1),
        rewarmup=(3, 0, 0, 5, 0),
    ),
    "nanotron": _rows(
        learning_rate=(0.0003, 0.2, 1.0, 0.01),
        lr_warmup_steps=(5, 0, 1, 6),
        lr_decay_starting_step=(12, 1, 11, 6),
        lr_decay_steps=(7, 14, 1, 8),
        lr_decay_style=("1-sqrt", "cosine", "linear", "linear"),
        min_decay_lr=(3e-05, 0.0, 0.4, 0.001),
    ),
}
"""Values for the options of a trainer, by page."""

SECTIONS: dict[str, list[Settings]] = {
    "modded-nanogpt, train_gpt.py (2026)": _rows(
        num_scheduled_iterations=(30, 22, 19),
        num_extension_iterations=(4, 0, 1),
        lr_muls=([1.0, 1.52, 1.73], [2.0, 0.5, 1.0], [1.0, 1.0, 0.2]),
        final_lr_mul=(0.15, 0.15, 0.15),
        cooldown_frac=(0.6, 1.0, 0.05),
    ),
    "modded-nanogpt, pull request 343": [
        *COMMON,
        {"peak": 0.03, "warmup": 100, "total": 130},
    ],  # the numbers of the code
    "modded-nanogpt, pull request 345": [
        *COMMON,
        {"peak": 0.03, "floor": 1e-05, "warmup": 100, "total": 3200, "decay": 3001, "power": 0.4},
    ],  # the numbers of the code
    "Muon's momentum and weight decay": _rows(
        num_iterations=(500, 400),
        warmdown_ratio=(0.1, 0.0),
        weight_decay=(0.28, 0.1),
    ),
    "train_gpt.py: Muon, Adam and the momentum": _rows(
        num_scheduled_iterations=(400, 350),
        num_extension_iterations=(15, 0),
    ),
    "Momentum and weight decay": _rows(
        peak=(0.1, 0.1),
        total=(19, 7),
        warmup=(5, 2),
    ),
    "PowerLR": [*COMMON, *({**row, "floor": 0.0} for row in COMMON)],
    "CosinePlateauScheduler, 32.3 %": [
        {"peak": 1.0, "floor": 0.0, "total": 1000, "warmup": 0, "plateaus": [(32.3, 10)]}
    ],
}

LIMITS: dict[str, Callable[[Settings], bool]] = {
    "warmup, below total": lambda row: row["warmup"] < row["total"],
    "a `warmup` of at least 1": lambda row: row["warmup"] >= 1,
    "a `warmup` of at least 2": lambda row: row["warmup"] >= 2,
    "final decay, at least 1": lambda row: row["decay"] >= 1,
    "constant phase precedes it; at least 1": lambda row: row["decay"] >= 1,
    "first update, above 0": lambda row: row["start"] > 0,
    "a `stop` above `warmup`": lambda row: row["stop"] > row["warmup"],
    "a `first` of at least 2 without one": lambda row: row["first"] >= 2 or row["warmup"] >= 1,
    "rate drops, above 0": lambda row: row["first"] >= 1,
    "milestones do not lie inside the warmup": lambda row: row["warmup"] <= row["first"],
    "for a `power` of 1 or more": lambda row: row["power"] >= 1,
    "With `lr_warmup_steps: 0` the original raises": lambda row: row["lr_warmup_steps"] >= 1,
    "`lr_min_ratio` must be above 0": lambda row: row["lr_min_ratio"] > 0,
    "a `min_lr_ratio` above 0": lambda row: row["min_lr_ratio"] > 0,
    "if it is not 0; below the peak": lambda row: row["start"] < row["peak"],
    "`floor` must be below `level`": lambda row: (
        row["floor"] / row["peak"] < ((row["total"] - row["decay"]) / row["warmup"]) ** -row["power"]
    ),
    "tages of length 0": lambda row: row["warmup"] > 0 and row["warmup"] + row["decay"] < row["total"],
    "a constant phase of at least one update": lambda row: row["warmup"] + row["decay"] < row["total"],
    "with a warmup of 0": lambda row: row["warmup"] == 0,
}
"""The words by which a page or section excludes values, and the values that remain."""


def rows(pair: Pair) -> Iterator[dict[str, Any]]:
    """Yield the values for the names that a section uses, without those that the page excludes."""
    limits = [allows for words, allows in LIMITS.items() if words in pair.limits]
    seen: list[Settings] = []
    for row in SECTIONS.get(pair.heading, PAGES.get(pair.page.stem, COMMON)):
        used = {name: value for name, value in row.items() if name in pair.names()}
        if used not in seen and all(allows(COMMON[0] | row) for allows in limits):
            seen.append(used)
            yield used


def counts(row: Settings, pair: Pair) -> Iterator[list[int]]:
    """Yield the samples of each update, or the tokens for OLMo-core: equal, then uneven."""
    random_count = random.Random(0).randint
    length = row.get("length", 1)
    # OLMo-core's run ends where its schedule does; Megatron-LM's goes on for a while.
    total = row.get("total") or sum(row["periods"])
    end = row["batch"] * (total + (0 if pair.page.stem == "olmo_core" else 3))
    yield [row["batch"] * length] * (end // row["batch"])
    uneven: list[int] = []
    while (rest := end - sum(uneven)) > 0:
        uneven.append(min(random_count(1, 3 * row["batch"]), rest))
    yield [count * length for count in uneven]


def updates(row: Settings) -> Iterable[int]:
    """Return the updates to record: all of a short run; of a long one its corners, and some others."""
    lengths = [value for value in row.values() if isinstance(value, int)]
    longest = max(lengths)
    if longest < 100:
        return range(36)
    corners = {*lengths, longest - row.get("decay", 0), *range(0, longest, longest // 60)}
    corners |= {int(row["total"] * start / 100) for start, _ in row.get("plateaus", ())}
    return sorted({max(0, corner + shift) for corner in corners for shift in (-1, 0, 1)})
