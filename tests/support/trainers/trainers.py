"""For the trainers' tests: programs on the pages, a small model, data, learning rates."""

import os
import re
import runpy
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import torch
from support.docs.pages import PAGES, program_named, sections
from support.schedulers.runs import learning_rate
from support.training.steps import equal_trees
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from plateau_jax import Curve, PlateauCurve

CURVE = PlateauCurve(12, warmup_steps=3, plateaus=[(20, 30)], min_lr_ratio=0.1)
PEAK = 3e-4
PAGE_CURVE = PlateauCurve(200, warmup_steps=20, plateaus=[(0, 60)])
"""The curve of most programs on the pages."""
PAGE_PEAK = 1e-2

LIGHTNING_WARNING = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
"""A filter for a warning of lightning 2.6 under torch 2.13."""
FOLDER_WARNING = "ignore:Checkpoint directory .* exists and is not empty:UserWarning"
"""A filter for Lightning's warning about a run that is resumed in its folder."""

LearningRates = list[list[float]]
Recorded = TypeVar("Recorded")


def program(heading: str, changes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the program under a heading of any page, with some code replaced."""
    source = program_named(heading).code
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def import_from_pages(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Write files that the pages show into a folder, from which they can be imported."""
    blocks = {
        block.file: block
        for page in PAGES
        for section in sections(page)
        for block in section.blocks
    }
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in files:
        (folder / name).write_text(blocks[name].code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)


@dataclass(frozen=True)
class ProgramRun:
    lines: list[str]
    """The printed lines with losses and learning rates."""
    names: dict[str, Any]
    """The program's global variables at its end; empty if it was interrupted."""


def train(
    heading: str,
    folder: Path,
    *,
    changes: Mapping[str, str] = MappingProxyType({}),
    interrupt_after: int | None = None,
    run_name: str = "__main__",
) -> ProgramRun:
    """Run a program of a page in a folder, or interrupt it after a number of printed lines."""
    file = folder / f"program_{os.getpid()}.py"  # ranks may share the folder
    file.write_text(program(heading, changes), encoding="utf-8")
    lines, line = list[str](), ""

    def note(*texts: object, end: str = "\n", **_: object) -> None:
        nonlocal line
        line += " ".join(map(str, texts)) + end
        if end == "\n":
            # Trainers also print other lines, and finally a loss with the run's time.
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
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the first into the second
        assert interrupt_after is not None
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning replaces it
    return ProgramRun(lines, names)


def losses(lines: Sequence[str]) -> list[float]:
    numbers = [re.search(r"loss\W+([\d.]+)", line) for line in lines]
    return [float(number[1]) for number in numbers if number is not None]


def run_and_resume(
    heading: str,
    folder: Path,
    record: Callable[[], AbstractContextManager[Recorded]],
    changes: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[ProgramRun, Recorded], tuple[ProgramRun, Recorded]]:
    """Run a program once in full and once interrupted and resumed; return both with their records.

    Checks that the loss falls, that the resumed run prints the last lines of the full one, and that
    a finished program makes no update when it is started again in its folder.
    """
    for name in ("whole", "interrupted"):
        (folder / name).mkdir(exist_ok=True)  # ranks may share it
    with record() as of_uninterrupted:
        uninterrupted = train(heading, folder / "whole", changes=changes)
    lines = len(uninterrupted.lines)
    assert losses(uninterrupted.lines)[-1] < losses(uninterrupted.lines)[0]
    assert train(heading, folder / "whole", changes=changes).lines == []
    with record():
        interrupted = train(
            heading, folder / "interrupted", changes=changes, interrupt_after=lines // 2 + 1
        )
    assert interrupted.lines == uninterrupted.lines[: lines // 2 + 1]
    with record() as of_resumed:
        resumed = train(heading, folder / "interrupted", changes=changes)
    assert 0 < len(resumed.lines) < lines
    assert resumed.lines == uninterrupted.lines[-len(resumed.lines) :]
    return (uninterrupted, of_uninterrupted), (resumed, of_resumed)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def dataset(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(rows, 4, generator=generator), torch.randn(rows, 1, generator=generator)
    )


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


@contextmanager
def record_lrs() -> Generator[LearningRates, None, None]:
    """Yield a list to which each step of any torch optimizer appends its groups' learning rates."""
    used: LearningRates = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        used.append([float(group["lr"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield used
    finally:
        handle.remove()


def expected_lrs(curve: Curve, steps: range, peak: float = PEAK, groups: int = 1) -> LearningRates:
    return [[learning_rate(peak, curve, step)] * groups for step in steps]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return equal_trees(one.state_dict(), other.state_dict())
