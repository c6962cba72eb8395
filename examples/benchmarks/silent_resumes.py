"""What schedules say when a run resumes under a changed one.

Each schedule runs to update 6,000 of 10,000, and its states are saved. The program is then built
again, for twice as many updates or with a warmup of 1,000 updates instead of 500, and loads the
states. The schedule *jumps* by the ratio of its learning rate to that of the uninterrupted run, in
the second update: in torch the first one uses the learning rate in the optimizer's state. The
change is *ignored* if the next 2,000 updates follow the old schedule. It is *right* if they follow
the new one and both have the same past; otherwise *the past differs*.

    python examples/benchmarks/silent_resumes.py

Needs transformers next to '.[examples]'.
"""

import copy
import warnings
from importlib.metadata import version

import numpy as np
import optax
import torch
from torch.optim import lr_scheduler
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from plateau_jax import (
    PlateauCurve,
    StagedCurve,
    check_resume,
    optax_schedule,
    resume_record,
)
from torch_bridge import lambda_lr

PEAK = 3e-4
AT, AFTER = 6_000, 2_000
PLANNED = 500, 10_000  # warmup and total
CHANGES = {"10,000 to 20,000 updates": (500, 20_000), "warmup 500 to 1,000": (1_000, 10_000)}


def sequential(optimizer, warmup, total):
    rise = lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=warmup)
    fall = lr_scheduler.CosineAnnealingLR(optimizer, total - warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])


IN_TORCH = {
    "torch `CosineAnnealingLR`": lambda optimizer, _, total: lr_scheduler.CosineAnnealingLR(
        optimizer, total
    ),
    "torch `OneCycleLR`": lambda optimizer, warmup, total: lr_scheduler.OneCycleLR(
        optimizer, PEAK, total_steps=total, pct_start=warmup / total
    ),
    "torch `SequentialLR`": sequential,
    "torch `PolynomialLR`": lambda optimizer, _, total: lr_scheduler.PolynomialLR(optimizer, total),
    "transformers `cosine`": get_cosine_schedule_with_warmup,
    "transformers `linear`": get_linear_schedule_with_warmup,
    "transformers `constant_with_warmup`": lambda optimizer, warmup, _: (
        get_constant_schedule_with_warmup(optimizer, warmup)
    ),
    "transformers `warmup_stable_decay`": lambda optimizer, warmup, total: get_wsd_schedule(
        optimizer, warmup, 2_000, num_training_steps=total
    ),
}


def cosine(warmup, total):
    return PlateauCurve(total, warmup_steps=warmup)


HERE = {
    "`lambda_lr`, cosine": lambda optimizer, *lengths: lambda_lr(optimizer, cosine(*lengths)),
    "`lambda_lr`, WSD": lambda optimizer, warmup, total: lambda_lr(
        optimizer, StagedCurve.wsd(total, warmup_steps=warmup, decay_steps=2_000)
    ),
}
IN_OPTAX = {
    "optax `warmup_cosine_decay_schedule`": lambda warmup, total: (
        optax.warmup_cosine_decay_schedule(0.0, PEAK, warmup, total)
    ),
    "optax `join_schedules`": lambda warmup, total: optax.join_schedules(
        [
            optax.linear_schedule(0.0, PEAK, warmup),
            optax.cosine_decay_schedule(PEAK, total - warmup),
        ],
        [warmup],
    ),
}


def in_jax(warmup, total):
    return optax_schedule(cosine(warmup, total), PEAK)


class TorchRun:
    """Updates of one parameter under a scheduler."""

    def __init__(self, build, warmup, total):
        self.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
        self.scheduler = build(self.optimizer, warmup, total)

    def lrs(self, updates):
        """Make updates, and return their learning rates."""
        lrs = []
        for _ in range(updates):
            lrs.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.scheduler.step()
        return np.array(lrs)

    def save(self):
        return copy.deepcopy((self.optimizer.state_dict(), self.scheduler.state_dict()))

    def load(self, saved):
        self.optimizer.load_state_dict(saved[0])
        self.scheduler.load_state_dict(saved[1])


class OptaxRun:
    """The same with an optax schedule: its state is a count."""

    def __init__(self, build, warmup, total):
        self.schedule = build(warmup, total)
        self.count = 0

    def lrs(self, updates):
        counts = np.arange(self.count, self.count + updates)
        self.count += updates
        return np.asarray(self.schedule(counts))

    def save(self):
        return self.count

    def load(self, saved):
        self.count = saved


class CheckedRun(OptaxRun):
    """The same with a record of the curve, which is compared."""

    def __init__(self, build, warmup, total):
        super().__init__(build, warmup, total)
        self.record = resume_record(cosine(warmup, total), PEAK)

    def save(self):
        return self.count, self.record

    def load(self, saved):
        self.count, record = saved
        check_resume(record, self.record, self.count)


def resume(make_run, changed):
    """Resume under a changed schedule; return a cell of the table."""
    run = make_run(*PLANNED)
    run.lrs(AT)
    saved = run.save()
    planned = run.lrs(AFTER)
    resumed = make_run(*changed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            resumed.load(saved)
        except ValueError:
            return "error"
        lrs = resumed.lrs(AFTER)
    if caught:
        return "warning"
    jump = lrs[1] / planned[1]
    if not np.isclose(jump, 1, rtol=1e-3):
        return f"jumps {jump:.2f} ×"
    whole = make_run(*changed).lrs(AT + AFTER)
    if np.allclose(lrs, whole[AT:], rtol=1e-3):
        same_past = np.allclose(whole[:AT], make_run(*PLANNED).lrs(AT), rtol=1e-3)
        return "right" if same_past else "the past differs"
    assert np.allclose(lrs, planned, rtol=1e-3)
    return "ignored"


def main() -> None:
    packages = ("torch", "transformers", "optax")
    print(", ".join(f"{package} {version(package)}" for package in packages))
    print(f"| | {' | '.join(CHANGES)} |\n|---|---|---|")
    for runs, schedules in (
        (TorchRun, IN_TORCH),
        (OptaxRun, IN_OPTAX),
        (TorchRun, HERE),
        (OptaxRun, {"`optax_schedule`, cosine, alone": in_jax}),
        (CheckedRun, {"`optax_schedule`, cosine, with `check_resume`": in_jax}),
    ):
        for name, build in schedules.items():
            cells = []
            for changed in CHANGES.values():
                has_warmup = name not in ("torch `CosineAnnealingLR`", "torch `PolynomialLR`")
                is_possible = has_warmup or changed[0] == PLANNED[0]
                cell = "has none"
                if is_possible:
                    cell = resume(lambda *lengths, b=build, r=runs: r(b, *lengths), changed)
                cells.append(cell)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
