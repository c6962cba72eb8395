"""Runs of the page's program for accelerate, in each process of a group."""

# pyright: reportMissingTypeStubs=false

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accelerate import Accelerator
from support.trainers.trainers import (
    LearningRates,
    ProgramRun,
    program,
    record_lrs,
    run_and_resume,
    same_weights,
    train,
)
from torch import distributed

from plateau_jax import CurveWarning

HEADING = "accelerate"
_BUILD_SCHEDULER = "scheduler = lambda_lr(optimizer, curve)"
_BACKWARD = "accelerator.backward(loss)"
_BUILD_ACCELERATOR = "accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)\n"


def advice() -> str:
    """Return the page's lines that step the scheduler, joined into one line."""
    (lines,) = re.findall(r"if accelerator.sync_gradients and .+:\n\s+scheduler.step\(\)", program(HEADING))
    return re.sub(r"\s+", " ", lines)


def _launch(run: Callable[[], Any]) -> Any:
    """Call a function in the environment that accelerate's launcher sets, with output from each process."""
    rank, processes = map(str, (distributed.get_rank(), distributed.get_world_size()))
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes}
    os.environ |= {"LOCAL_WORLD_SIZE": processes, "ACCELERATE_USE_CPU": "true"}
    with patch.object(Accelerator, "print", _print):
        return run()


def _print(_: Accelerator, text: str) -> None:
    print(text)


def compare_resumed(folder: str) -> tuple[LearningRates, LearningRates, bool]:
    """Return the learning rates of a whole and of a resumed run, and True if their weights are equal."""
    (uninterrupted, used), (later, used_later) = _launch(
        lambda: run_and_resume(HEADING, Path(folder), record_lrs)
    )
    return used, used_later, same_weights(later.names["model"], uninterrupted.names["model"])


def _first_updates(folder: str, changes: dict[str, str], saves: int = 1) -> LearningRates:
    """Return the learning rates of the first updates: twenty for each save."""

    def run() -> ProgramRun:
        return train(HEADING, Path(folder), changes=changes, interrupt_after=saves)

    with record_lrs() as used:
        _launch(run)
    return used


def run_with_prepared_scheduler(folder: str) -> tuple[LearningRates, list[tuple[str, str]]]:
    """Return the learning rates with a prepared scheduler, and each warning's folder and text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CurveWarning)
        used = _first_updates(
            folder, {_BUILD_SCHEDULER: "scheduler = accelerator.prepare(lambda_lr(optimizer, curve))"}, 3
        )
    return used, [(Path(warning.filename).parent.name, str(warning.message)) for warning in caught]


def run_with_overflow(folder: str, update: int) -> LearningRates:
    """Return the learning rates if one update overflows, with a gradient scaler (fp16 itself needs a GPU)."""
    return _first_updates(
        folder,
        {
            _BUILD_ACCELERATOR: f"{_BUILD_ACCELERATOR}accelerator.scaler = torch.amp.GradScaler('cpu')\n",
            _BACKWARD: f"accelerator.backward(loss * torch.inf if update == {update} else loss)",
        },
    )
