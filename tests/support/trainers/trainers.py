"""Shared by the tests of the trainers: the programs of `docs/trainers.md`, a small model, data and rates."""

import os
import re
import runpy
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from support.docs.pages import ROOT, sections
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from plateau_jax import Curve, PlateauCurve

CURVE = PlateauCurve(12, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAK = 3e-4
PAGE = ROOT / "docs" / "trainers.md"
OF_PAGE = PlateauCurve(200, warmup_steps=20, plateaus=[(0, 60)])
"""The curve of most programs there."""
PEAK_OF_PAGE = 1e-2

OF_LIGHTNING = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
"""lightning 2.6 warns so under torch 2.13."""
IN_AN_OLD_FOLDER = "ignore:Checkpoint directory .* exists and is not empty:UserWarning"
"""Lightning warns if a run is resumed in the folder that it began in."""

Used = list[list[float]]
Noted = TypeVar("Noted")


def program(heading: str, changes: Mapping[str, str] = MappingProxyType({})) -> str:
    """The program under a heading of the page, with other code in place of some lines."""
    (source,) = (section.python() for section in sections(PAGE) if section.heading == heading)
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@dataclass(frozen=True)
class Training:
    lines: list[str]
    """The losses and rates that it printed."""
    names: dict[str, Any]
    """The program's names at its end; none where it was interrupted."""


def train(
    heading: str,
    folder: Path,
    *,
    changes: Mapping[str, str] = MappingProxyType({}),
    interrupt_after: int | None = None,
    run_name: str = "__main__",
) -> Training:
    """Run a program of the page in a folder; with a number, up to a Ctrl-C after so many lines."""
    file = folder / f"program_{os.getpid()}.py"  # ranks may share the folder
    file.write_text(program(heading, changes), encoding="utf-8")
    lines, line = list[str](), ""

    def note(*texts: object, end: str = "\n", **_: object) -> None:
        nonlocal line
        line += " ".join(map(str, texts)) + end
        if end == "\n":
            # Trainers print other things too, and at last a loss beside the seconds that all took.
            if "loss" in line and "runtime" not in line:
                lines.append(line)
            line = ""
        if len(lines) == interrupt_after:
            raise KeyboardInterrupt

    names: dict[str, Any] = {}
    handler = signal.getsignal(signal.SIGINT)
    try:
        with chdir(folder), patch("builtins.print", note):
            names = runpy.run_path(str(file), run_name=run_name)
    except (KeyboardInterrupt, SystemExit):  # Lightning makes the second of the first
        assert interrupt_after is not None
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning takes it away
    return Training(lines, names)


def losses(lines: Sequence[str]) -> list[float]:
    return [float(number[1]) for line in lines if (number := re.search(r"loss\W+([\d.]+)", line))]


def whole_and_resumed(
    heading: str, folder: Path, noted: Callable[[], AbstractContextManager[Noted]]
) -> tuple[tuple[Training, Noted], tuple[Training, Noted]]:
    """A program that never stops, and one that is interrupted and run again: each with what was noted of it.

    The loss falls, and the second prints what the first does from its last checkpoint on.
    """
    for name in ("whole", "interrupted"):
        (folder / name).mkdir(exist_ok=True)  # ranks may share it
    with noted() as of_whole:
        whole = train(heading, folder / "whole")
    lines = len(whole.lines)
    assert losses(whole.lines)[-1] < losses(whole.lines)[0]
    with noted():
        interrupted = train(heading, folder / "interrupted", interrupt_after=lines // 2 + 1)
    assert interrupted.lines == whole.lines[: lines // 2 + 1]
    with noted() as of_resumed:
        resumed = train(heading, folder / "interrupted")
    assert 0 < len(resumed.lines) < lines
    assert resumed.lines == whole.lines[-len(resumed.lines) :]
    return (whole, of_whole), (resumed, of_resumed)


def assert_resumed(heading: str, folder: Path, wanted: Used) -> None:
    """Compare a program with the same one interrupted halfway: the rates used, and the weights."""
    (whole, used), (resumed, used_later) = whole_and_resumed(heading, folder, rates_used)
    assert used == wanted
    assert used_later == wanted[len(wanted) // 2 :]
    assert same_weights(resumed.names["model"], whole.names["model"])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def dataset(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(rows, 4, generator=generator), torch.randn(rows, 1, generator=generator))


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


@contextmanager
def rates_used() -> Generator[Used, None, None]:
    """A list that gets the rates in the groups at each step of any torch optimizer."""
    used: Used = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        used.append([float(group["lr"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield used
    finally:
        handle.remove()


def rates(curve: Curve, steps: range, peak: float = PEAK, groups: int = 1) -> Used:
    """The rates that an update at each of these steps must use, as exact products."""
    return [[float(np.float32(peak)) * curve(step)] * groups for step in steps]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )
