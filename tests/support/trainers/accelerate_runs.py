"""The page's program for accelerate, in each process of a group."""

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
    Training,
    Used,
    program,
    rates_used,
    same_weights,
    train,
    whole_and_resumed,
)
from torch import distributed

from plateau_jax import CurveWarning

HEADING = "accelerate"
_BUILD = "scheduler = lambda_lr(optimizer, curve)"
_BACKWARD = "accelerator.backward(loss)"
_MADE = "accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)\n"


def advice() -> str:
    """The page's lines that step the scheduler, as one line."""
    (found,) = re.findall(r"if accelerator.sync_gradients and .+:\n\s+scheduler.step\(\)", program(HEADING))
    return re.sub(r"\s+", " ", found)


def _launched(run: Callable[[], Any]) -> Any:
    """What it returns in the environment that accelerate's launcher sets; each process prints."""
    rank, processes = map(str, (distributed.get_rank(), distributed.get_world_size()))
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes}
    os.environ |= {"LOCAL_WORLD_SIZE": processes, "ACCELERATE_USE_CPU": "true"}
    with patch.object(Accelerator, "print", _print):
        return run()


def _print(_: Accelerator, text: str) -> None:
    print(text)


def resumed(folder: str) -> tuple[Used, Used, bool]:
    """The rates of a run, and of one that was interrupted; and whether their weights are equal."""
    (whole, used), (later, used_later) = _launched(
        lambda: whole_and_resumed(HEADING, Path(folder), rates_used)
    )
    return used, used_later, same_weights(later.names["model"], whole.names["model"])


def _first_updates(folder: str, changes: dict[str, str]) -> Used:
    """The rates of the first twenty updates."""

    def run() -> Training:
        return train(HEADING, Path(folder), changes=changes, interrupt_after=1)

    with rates_used() as used:
        _launched(run)
    return used


def prepared(folder: str) -> tuple[Used, list[tuple[str, str]]]:
    """The rates with a prepared scheduler; and of each warning, its folder and its text."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CurveWarning)
        used = _first_updates(
            folder, {_BUILD: "scheduler = accelerator.prepare(lambda_lr(optimizer, curve))"}
        )
    return used, [(Path(warning.filename).parent.name, str(warning.message)) for warning in said]


def overflowing(folder: str, update: int) -> Used:
    """The rates where one update overflows, with a gradient scaler (fp16 itself needs a GPU)."""
    return _first_updates(
        folder,
        {
            _MADE: f"{_MADE}accelerator.scaler = torch.amp.GradScaler('cpu')\n",
            _BACKWARD: f"accelerator.backward(loss * torch.inf if update == {update} else loss)",
        },
    )
