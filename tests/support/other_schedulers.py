"""The lines of the README's table "Coming from another scheduler", and the rates that they give."""

import re
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]  (it has none)
import torch
from numpy.typing import NDArray
from support import published
from support.jax_cases import product
from support.readme import rows
from support.runs import advance, rates_of
from torch.optim import SGD, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from transformers import optimization

import plateau_jax
import torch_bridge
from plateau_jax import Curve
from torch_bridge import lambda_lr

Settings = Mapping[str, Any]
Rates = NDArray[np.floating[Any]]

_ZERO_UNLESS_NAMED = "w", "start", "floor"

_NAMES: dict[str, Any] = {
    **{name: getattr(plateau_jax, name) for name in plateau_jax.__all__},
    **{name: getattr(torch_bridge, name) for name in torch_bridge.__all__},
    **vars(lr_scheduler),
    **{name: value for name, value in vars(optimization).items() if name.startswith("get_")},
    "optax": optax,
    "CosinePlateauScheduler": published.cosine_plateau,
    "CosineLRScheduler": published.timm_cosine,
}


class Pair(NamedTuple):
    """A line of another library, the line here, and what that library does after the end if it differs."""

    there: str
    after: str
    here: str

    def read(self, settings: Settings) -> dict[str, Any]:
        """The settings for the line: some names that it does not have count as 0, as the table says."""
        named = re.findall(r"\w+", self.there)
        absent = {name for name in _ZERO_UNLESS_NAMED if name not in named}
        return {name: 0 if name in absent else value for name, value in settings.items()}

    @property
    def of_optax(self) -> bool:
        return self.there.startswith("optax.")


def pairs() -> list[Pair]:
    """All lines of the table's left column; one line on the right stands for all on its left."""
    found: list[Pair] = []
    for left, right in rows("Coming from another scheduler"):
        heres = [line.strip("`") for line in right.split("<br>")]
        theres = left.split("<br>")
        for line, here in zip(theres, heres * len(theres) if len(heres) == 1 else heres, strict=True):
            there = re.fullmatch(r"(?:\w+: )?`(.+)`(?:, (.+))?", line)
            assert there, line
            found.append(Pair(there[1], there[2] or "", here))
    return found


def run(line: str, settings: Settings, steps: int, *, optax_rates: bool) -> tuple[Any, Rates]:
    """What the line returns, and the rates of updates 0, 1, …: of a stepped optimizer, or of a schedule.

    A curve goes into `lambda_lr`; with `optax_rates` the rates are those of `optax_schedule`, bit for bit.
    """
    peak = settings["peak"]
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], peak, momentum=0.9)
    config = SimpleNamespace(Config=partial(published.torchtitan, peak))
    names = {**_NAMES, **settings, "optimizer": optimizer, "LRSchedulersContainer": config}
    made: Any = eval(line, names)
    counts = np.arange(steps)
    if optax_rates:
        return made, product(made, peak, counts, False) if isinstance(made, Curve) else jax.vmap(made)(counts)
    scheduler = lambda_lr(optimizer, made) if isinstance(made, Curve) else made
    if not isinstance(scheduler, LRScheduler):
        return made, np.array([scheduler(step) for step in range(steps)])
    rates: list[float] = []
    for _ in counts:
        rates += rates_of(optimizer)
        advance(optimizer, scheduler)
    return made, np.array(rates)
