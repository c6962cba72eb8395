"""The sections of docs/other_schedulers.md: both sides of each, and the rates that they give."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from support import published
from support.jax_cases import product
from support.pages import ROOT, sections
from support.runs import advance, rates_of
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax import Curve

Settings = Mapping[str, Any]
Rates = NDArray[np.floating[Any]]

PAGE = ROOT / "docs" / "other_schedulers.md"
PAST_THE_END = "climbs again", "restarts again", "falls on", "raises"
"""What a section's words say of the other library's rates past the end; else they are equal there too."""

_SECTION = re.compile(
    r"(.+?)\n\n(.+?)\n\nThere:\n\n```py(?:thon)?\n(.+?)```\n\nHere:\n\n```python\n(.+?)```\n*", re.DOTALL
)


class Pair(NamedTuple):
    """A section of the page: a scheduler of another library, and the same rates here."""

    heading: str
    words: str
    there: str
    here: str

    @property
    def of_optax(self) -> bool:
        return self.heading.startswith("optax.")

    @property
    def after(self) -> str:
        found = [after for after in PAST_THE_END if after in self.words]
        assert len(found) <= 1, self.heading
        return found[0] if found else ""


def pairs() -> list[Pair]:
    """Every section with three signs."""
    _, *parts = PAGE.read_text(encoding="utf-8").split("\n### ")
    found: list[Pair] = []
    for part in parts:
        section = _SECTION.fullmatch(part.partition("\n## ")[0])
        assert section, part
        found.append(Pair(*section.groups()))
    return found


def names() -> dict[str, Any]:
    """What the page's first block sets."""
    found: dict[str, Any] = {}
    exec(next(sections(PAGE)).python(), found)
    del found["__builtins__"]
    return found


def run(code: str, settings: Settings, steps: int) -> tuple[dict[str, Any], Rates]:
    """What the block sets, and the rates of updates 0, 1, …: of a stepped optimizer, or of a schedule."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], settings["peak"], momentum=0.9)
    made: dict[str, Any] = {**settings, "optimizer": optimizer}
    with patch.dict("sys.modules", _stand_ins(settings)), patch("plateau_jax.optax_schedule", _uncompiled):
        exec(code, made)
    if schedule := made.get("schedule"):
        every = schedule if "curve" in made else jax.vmap(schedule)
        return made, np.asarray(every(np.arange(steps)))
    scheduler = made["scheduler"] if "scheduler" in made else made["lr_scheduler"]
    if not isinstance(scheduler, LRScheduler):
        return made, np.array([scheduler(step) for step in range(steps)])
    rates: list[float] = []
    for _ in range(steps):
        rates += rates_of(optimizer)
        advance(optimizer, scheduler)
    return made, np.array(rates)


def _uncompiled(curve: Curve, peak: float) -> Callable[[NDArray[Any]], Rates]:
    """The bits of `optax_schedule`, as its own tests show, without compiling for every generated curve."""
    return lambda steps: product(curve, peak, steps, x64=False)


def _stand_ins(settings: Settings) -> dict[str, ModuleType]:
    """The modules that are not installed, with the formulas in place of their schedulers."""
    peak, batch = settings["peak"], settings["batch"]

    def megatron(optimizer: Optimizer, **settings: Any) -> Callable[[int], float]:
        rate = published.megatron(optimizer, **settings)
        return lambda update: rate(update * batch)

    found: dict[str, ModuleType] = {}
    for path, scheduler in {
        "cosine_plateau_scheduler.CosinePlateauScheduler": published.cosine_plateau,
        "timm.scheduler.CosineLRScheduler": published.timm_cosine,
        "torchtitan.components.optimizer.lr_scheduler.LRSchedulersContainer": SimpleNamespace(
            Config=partial(published.torchtitan, peak)
        ),
        "megatron.core.optimizer_param_scheduler.OptimizerParamScheduler": megatron,
    }.items():
        module, _, name = path.rpartition(".")
        packages = module.split(".")
        for depth in range(1, len(packages) + 1):
            full = ".".join(packages[:depth])
            found[full] = ModuleType(full)
        setattr(found[module], name, scheduler)
    return found
