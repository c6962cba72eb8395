"""The sections of docs/other_schedulers.md: both sides of each, and the rates that they give."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from support.docs import published
from support.docs.pages import ROOT, sections
from support.jax.jax_cases import product
from support.schedulers.runs import advance, lrs_of
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax import Curve

Settings = Mapping[str, Any]
Rates = NDArray[np.floating[Any]]

PAGE = ROOT / "docs" / "other_schedulers.md"
OF_OLMO = (
    *("CosWithWarmup", "LinearWithWarmup", "ConstantWithWarmup", "WSD", "InvSqrtWithWarmup", "PowerLR"),
)
PAST_THE_END = "climbs again", "restarts again", "keeps falling", "raises"
"""Words by which a section describes an original that differs from the curve past the end."""

_SECTION = re.compile(
    r"(.+?)\n\n(.+?)\n\nBefore:\n\n```py(?:thon)?\n(.+?)```\n\nAfter:\n\n```python\n(.+?)```\n*", re.DOTALL
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
    def of_megatron(self) -> bool:
        return self.heading.startswith("--lr-decay-style")

    @property
    def of_olmo(self) -> bool:
        return self.heading in OF_OLMO

    def by_updates(self) -> "Pair":
        """As the page says, for a constant batch: what counts samples there and here counts updates."""
        return self._replace(
            there=self.there.replace("batch * ", ""),
            here=self.here.replace("batch * ", "").replace(", unit=1", ""),
        )

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
        rates += lrs_of(optimizer)
        advance(optimizer, scheduler)
    return made, np.array(rates)


def run_counted(
    pair: Pair, settings: Settings, counts: Sequence[int]
) -> tuple[list[float], list[float], list[float]]:
    """The rates there and here of updates of these counts, and here the rate after the last one."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], settings["peak"], momentum=0.9)
    made: list[dict[str, Any]] = []
    with patch.dict("sys.modules", _stand_ins(settings)):
        for code in (pair.there, pair.here):
            made.append({**settings, "optimizer": optimizer})
            exec(code, made[-1])
    rate, scheduler = (names["scheduler"] for names in made)
    there: list[float] = []
    here: list[float] = []
    used = 0
    for count in counts:
        if pair.of_olmo:
            scheduler.step(count=count)
            there.append(rate(used + count))
        else:
            there.append(rate(used))
        here += lrs_of(optimizer)
        optimizer.step()
        used += count
        if not pair.of_olmo:
            scheduler.step(count=count)
    return there, here, lrs_of(optimizer)


def _uncompiled(curve: Curve, peak: float) -> Callable[[NDArray[Any]], Rates]:
    """The bits of `optax_schedule`, as its own tests show, without compiling for every generated curve."""
    return lambda steps: product(curve, peak, steps, x64=False)


def _olmo(kind: str, peak: float, max_tokens: int, *, units: str, **settings: Any) -> published.Rate:
    assert units == "tokens"
    settings.pop("decay_fraction", None)
    return published.olmo(kind, peak, max_tokens, **settings)


def _stand_ins(settings: Settings) -> dict[str, ModuleType]:
    """The modules that are not installed, with the formulas in place of their schedulers."""
    peak, batch = settings["peak"], settings["batch"]
    tokens = settings["length"] * batch * settings["total"]
    found: dict[str, ModuleType] = {}
    for path, scheduler in {
        "cosine_plateau_scheduler.CosinePlateauScheduler": published.cosine_plateau,
        "timm.scheduler.CosineLRScheduler": published.timm_cosine,
        "timm.scheduler.PolyLRScheduler": published.timm_poly,
        "torchtitan.components.optimizer.lr_scheduler.LRSchedulersContainer": SimpleNamespace(
            Config=partial(published.torchtitan, peak)
        ),
        "megatron.core.optimizer_param_scheduler.OptimizerParamScheduler": published.megatron,
        "olmo_core.optim.scheduler.SchedulerUnits": SimpleNamespace(tokens="tokens"),
        **{f"olmo_core.optim.scheduler.{kind}": partial(_olmo, kind, peak, tokens) for kind in OF_OLMO},
    }.items():
        module, _, name = path.rpartition(".")
        packages = module.split(".")
        for depth in range(1, len(packages) + 1):
            full = ".".join(packages[:depth])
            found.setdefault(full, ModuleType(full))
        setattr(found[module], name, scheduler)
    return found
