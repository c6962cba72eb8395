"""Training runs in DeepSpeed's engine, in a single process on the CPU."""

import os
import runpy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from support.programs import rank_environments
from support.training.models import seeded
from torch import nn
from torch.optim import AdamW
from trainers import runs

from plateau_jax import Curve, CurveWarning
from torch_bridge import lambda_lr

MICRO_BATCHES = 2
ROWS = 4


@dataclass(frozen=True)
class Plan:
    """A model of one layer for each group that has parameters."""

    stage: int
    peaks: Sequence[float | None]
    """The peak of each group; None for a group without parameters, which DeepSpeed drops."""
    curve: Curve | Sequence[Curve]

    def curves(self) -> Sequence[Curve]:
        """Return the curve of each group."""
        if isinstance(self.curve, Curve):
            return [self.curve] * len(self.peaks)
        return self.curve

    @property
    def updates(self) -> int:
        """As many as the longest curve has steps."""
        return max(curve.total_steps for curve in self.curves())


@dataclass
class Record:
    used: list[list[float]] = field(default_factory=list[list[float]])
    """The learning rates of the groups that have parameters, in the order of the groups."""
    losses: list[float] = field(default_factory=list[float])


def train_and_resume(plans: Sequence[Plan], folder: Path) -> list[tuple[Record, Record]]:
    """Train each model, saving after half of the updates; then resume from there in a new engine.

    Returns:
        The records of the uninterrupted and of the resumed run, for each plan.
    """
    deepspeed = _import_deepspeed()
    records: list[tuple[Record, Record]] = []
    for plan in plans:
        half = plan.updates // 2
        uninterrupted = Record()
        engine, optimizer = _initialize(deepspeed, plan)
        _train(engine, optimizer, range(half), uninterrupted)
        engine.save_checkpoint(folder, tag="half")
        _train(engine, optimizer, range(half, plan.updates), uninterrupted)

        resumed = Record()
        engine, optimizer = _initialize(deepspeed, plan)
        engine.load_checkpoint(folder, tag="half")
        _train(engine, optimizer, range(half, plan.updates), resumed)
        records.append((uninterrupted, resumed))
    return records


def run_program(code: str, folder: Path) -> tuple[list[list[float]], dict[str, Any]]:
    """Run a program in a folder; return its learning rates and the scheduler's state."""
    _import_deepspeed()
    os.chdir(folder)
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    with runs.record_lrs() as used:
        names = runpy.run_path(str(file), run_name="__main__")
    return used, names["scheduler"].state_dict()


def _import_deepspeed() -> Any:
    (ranks,) = rank_environments(1)
    os.environ |= ranks | {"DS_ACCELERATOR": "cpu"}
    # DeepSpeed calls functions that torch has deprecated.
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", CurveWarning)
    deepspeed = import_module("deepspeed")
    # Otherwise the first run on a machine compiles this operator, which takes a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _initialize(deepspeed: Any, plan: Plan) -> tuple[Any, AdamW]:
    """Build a scheduler, and then the engine, as trainers do."""
    model = nn.Sequential()
    groups: list[dict[str, Any]] = []
    with seeded(0):
        for peak in plan.peaks:
            if peak is None:
                groups.append({"params": [], "weight_decay": 0.0})
            else:
                layer = nn.Linear(3, 3)
                model.append(layer)
                groups.append({"params": list(layer.parameters()), "lr": peak})
    optimizer = AdamW(groups)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=lambda_lr(optimizer, plan.curve),
        config={
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "zero_optimization": {"stage": plan.stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    return engine, optimizer


def _train(engine: Any, optimizer: AdamW, updates: range, record: Record) -> None:
    lrs: list[float] = []

    def note(stepped: AdamW, *_: Any) -> None:
        # Stages 1 and 2 step the groups one at a time, in a list with one group, and stage 3 keeps
        # the parameters of the other groups out of them.
        lrs.extend(float(group["lr"]) for group in stepped.param_groups if group["params"])

    handle = optimizer.register_step_pre_hook(note)
    for update in updates:
        with seeded(update):
            batches = torch.randn(MICRO_BATCHES, ROWS, 3)
        for batch in batches:
            loss = (engine(batch) - batch).square().mean()
            engine.backward(loss)
            engine.step()
            record.losses.append(loss.item())
        record.used.append(lrs.copy())
        lrs.clear()
    handle.remove()
