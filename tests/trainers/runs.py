"""For the trainers' tests: programs on the pages, and their learning rates."""

import re
import runpy
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
from support.docs.pages import program_named, without_losses
from support.schedulers.runs import learning_rate
from support.trees import assert_equal_trees
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plateau_jax import Curve, StagedCurve

PAGE_CURVE = StagedCurve([(20, 1.0), (140,), (40, 0.0, "1-sqrt")])
"""The curve of most programs on the pages."""
PAGE_PEAK = 1e-2

LIGHTNING_WARNING = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
"""A filter for a warning of lightning 2.6 under torch 2.13."""
resumes_in_its_folder = pytest.mark.filterwarnings(
    LIGHTNING_WARNING, "ignore:Checkpoint directory .* exists and is not empty:UserWarning"
)
"""For tests of runs that Lightning resumes, about which it warns."""

LearningRates = list[list[float]]
Record = Callable[[], AbstractContextManager[Any]]
NO_CHANGES: Mapping[str, str] = MappingProxyType({})


# The programs on the pages.


def program(heading: str, changes: Mapping[str, str] = NO_CHANGES) -> str:
    """Return the program under a heading of any page, with some of its code replaced."""
    return replaced(program_named(heading).code, changes)


def replaced(code: str, changes: Mapping[str, str]) -> str:
    """Replace pieces of code, each of which must occur exactly once."""
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


# Running them.


@dataclass(frozen=True)
class ProgramRun:
    lines: list[str]
    """The printed lines with losses and learning rates."""
    names: dict[str, Any]
    """The program's global variables at its end; empty if it was interrupted."""
    recorded: Any
    """What `record` has yielded, such as the learning rates of the updates."""

    def assert_same_weights(self, run: "ProgramRun") -> None:
        """Check that the weights of the two programs are equal."""
        weights = self.names["model"].state_dict()
        assert_equal_trees(weights, run.names["model"].state_dict())


class Printer:
    """Replaces `print`: keeps the lines with losses, and can interrupt the program."""

    def __init__(self, interrupt_after: int | None) -> None:
        self.lines: list[str] = []
        self.interrupt_after = interrupt_after
        self.line = ""

    def __call__(self, *values: object, end: str = "\n", **_: object) -> None:
        self.line += " ".join(map(str, values)) + end
        if end == "\n":
            # Trainers also print other lines, and finally a loss with the run's time.
            if "loss" in self.line and "runtime" not in self.line:
                self.lines.append(self.line)
            self.line = ""
        if len(self.lines) == self.interrupt_after:
            raise KeyboardInterrupt


def train(
    heading: str,
    folder: Path,
    *,
    changes: Mapping[str, str] = NO_CHANGES,
    record: Record = nullcontext,
    interrupt_after: int | None = None,
) -> ProgramRun:
    """Run a program of a page in a folder, or interrupt it after a number of printed lines.

    `record` returns a context, which yields a record of the program that runs inside it.
    """
    file = folder / "program.py"
    file.write_text(program(heading, changes), encoding="utf-8")
    printer = Printer(interrupt_after)
    names: dict[str, Any] = {}
    recorded = None
    handler = signal.getsignal(signal.SIGINT)
    try:
        with chdir(folder), patch("builtins.print", printer), record() as recorded:
            names = runpy.run_path(str(file), run_name="__main__")
    except (KeyboardInterrupt, SystemExit):  # Lightning turns the first into the second
        assert interrupt_after is not None
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning replaces it
    return ProgramRun(printer.lines, names, recorded)


def run_and_resume(
    heading: str,
    folder: Path,
    record: Record,
    changes: Mapping[str, str] = NO_CHANGES,
) -> tuple[ProgramRun, ProgramRun]:
    """Run a program once in full, and once interrupted and resumed; return the full, the resumed.

    Checks that the loss falls, that the full run prints what the page shows, that the resumed run
    prints the last lines of the full one, and that a finished program makes no update when it is
    started again in its folder.

    Args:
        heading: The heading of the program.
        folder: Gets a folder for the full run, and one for the interrupted and the resumed run.
        record: As in `train`.
        changes: Pieces of the program's code, and what replaces them.
    """
    whole = folder / "whole"
    whole.mkdir()
    uninterrupted = train(heading, whole, changes=changes, record=record)
    printed_losses = losses(uninterrupted.lines)
    assert printed_losses[-1] < printed_losses[0], f"the loss does not fall: {printed_losses}"
    if not changes:
        shown = program_named(heading).shown
        assert without_losses(shown) == without_losses("".join(uninterrupted.lines))
    finished = train(heading, whole, changes=changes)
    assert finished.lines == [], f"the finished program continues: {finished.lines}"

    interrupted_folder = folder / "interrupted"
    interrupted_folder.mkdir()
    lines_before = len(uninterrupted.lines) // 2 + 1
    interrupted = train(
        heading, interrupted_folder, changes=changes, record=record, interrupt_after=lines_before
    )
    first_lines = uninterrupted.lines[:lines_before]
    assert interrupted.lines == first_lines, f"{interrupted.lines}, not {first_lines}"
    resumed = train(heading, interrupted_folder, changes=changes, record=record)
    assert 0 < len(resumed.lines) < len(uninterrupted.lines), f"it prints {resumed.lines}"
    last_lines = uninterrupted.lines[-len(resumed.lines) :]
    assert resumed.lines == last_lines, f"it resumes with {resumed.lines}, not {last_lines}"
    return uninterrupted, resumed


def losses(lines: Sequence[str]) -> list[float]:
    """Return the losses of those lines that have one."""
    numbers = [re.search(r"loss\W+([\d.]+)", line) for line in lines]
    return [float(number[1]) for number in numbers if number is not None]


# Learning rates.


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


def expected_lrs(curve: Curve, steps: range, groups: int = 1) -> LearningRates:
    """Return the learning rates of groups with the peak of the pages and the same curve."""
    return [[learning_rate(PAGE_PEAK, curve, step)] * groups for step in steps]
