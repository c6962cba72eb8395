"""Trainings with accelerate, in each process of a group."""

# pyright: reportMissingTypeStubs=false

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from support import trainers
from support.trainers import CURVE, PEAK, execute, rates_used, same_weights
from torch import distributed
from torch.optim import AdamW
from torch.utils.data import DataLoader

from plateau_jax import CurveWarning
from torch_bridge import lambda_lr

*BUILD, STEP = trainers.readme("accelerate")
ACCUMULATION = 2


class Run:
    def __init__(self, prepare_scheduler: bool = False, scaler: Any = None) -> None:
        # As accelerate's launcher sets them.
        rank, processes = map(str, (distributed.get_rank(), distributed.get_world_size()))
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes}
        os.environ["LOCAL_WORLD_SIZE"] = processes
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
        self.accelerator.scaler = scaler
        model = trainers.net()
        self.names: dict[str, Any] = {
            "accelerator": self.accelerator,
            "model": model,
            "optimizer": AdamW(model.parameters(), PEAK),
            "batches": DataLoader(trainers.dataset(24 * 8), 4),
            "curve": CURVE,
            "lambda_lr": lambda_lr,
        }
        execute(BUILD, self.names)
        if prepare_scheduler:
            self.names["scheduler"] = self.accelerator.prepare(self.names["scheduler"])

    def train(self, first: int, last: int, overflow_at: int = -1) -> list[list[float]]:
        """Make these updates, and return the rates that they used."""
        accelerator, model, optimizer = (self.names[name] for name in ("accelerator", "model", "optimizer"))
        with rates_used() as used:
            for number, batch in enumerate(self.names["batches"]):
                update = number // ACCUMULATION
                if not first <= update < last:
                    continue
                with accelerator.accumulate(model):
                    loss = trainers.loss_of(model, batch)
                    accelerator.backward(loss * torch.inf if update == overflow_at else loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    execute([STEP], self.names)
                    optimizer.zero_grad()
        return used


def resumed(folder: str) -> dict[str, Any]:
    """The rates of a run, and of one interrupted after five updates; and whether their weights are equal."""
    path = str(Path(folder, "saved"))
    whole = Run()
    used = whole.train(0, 12)
    interrupted = Run()
    interrupted.train(0, 5)
    interrupted.accelerator.save_state(path)
    later = Run()
    later.accelerator.load_state(path)
    return {
        "processes": whole.accelerator.num_processes,
        "whole": used,
        "resumed": later.train(5, 12),
        "same": same_weights(later.names["model"], whole.names["model"]),
    }


def prepared() -> tuple[list[list[float]], list[tuple[str, str]]]:
    """The rates of six updates with a prepared scheduler; and of each warning, its folder and its text."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CurveWarning)
        used = Run(prepare_scheduler=True).train(0, 6)
    return used, [(Path(warning.filename).parent.name, str(warning.message)) for warning in said]


def overflowing(update: int) -> list[list[float]]:
    """The rates of six updates of which one overflows, with a gradient scaler (fp16 itself needs a GPU)."""
    return Run(scaler=torch.amp.GradScaler("cpu")).train(0, 6, update)
