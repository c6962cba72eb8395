"""The pages of docs/other_schedulers/: the blocks of each section, and the learning rates that they give."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from support.docs import published, published_trainers
from support.docs.pages import ROOT, sections
from support.docs.published_olmo import OLMO_CORE
from support.jax.jax_cases import product
from support.schedulers.runs import advance, lrs_of
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler

from plateau_jax import Curve

Settings = Mapping[str, Any]
LearningRates = NDArray[np.floating[Any]]

FOLDER = ROOT / "docs" / "other_schedulers"
INDEX = FOLDER / "index.md"
PAGES = tuple(sorted(set(FOLDER.glob("*.md")) - {INDEX}))
TIMM_SCHEDULERS = "CosineLRScheduler", "PolyLRScheduler", "StepLRScheduler", "MultiStepLRScheduler"
PAST_THE_END = "climbs again", "restarts again", "keeps falling", "continues its decay", "raises"
"""Words by which a section describes an original that differs from the curve past the end."""

_SECTION = re.compile(
    r"(.+?)\n\n(.+?)\n\nBefore:\n\n```(py|python|sh|yaml)\n(.+?)```\n\nAfter:\n\n```python\n(.+?)```\n*(.*)",
    re.DOTALL,
)
_MEGATRON_ROW = re.compile(
    r"^\| `(\S+)` \| (?:`(\S+)`)? ?\| (?:`\"(\S+)\"`)? ?\| \[.+\]\(#(.+)\) \|$", re.MULTILINE
)


class Pair(NamedTuple):
    """A section of a page: the original scheduler, and code here that gives the same learning rates."""

    page: Path
    heading: str
    text: str
    language: str
    before: str
    after: str

    @property
    def is_optax(self) -> bool:
        return self.page.stem == "optax"

    @property
    def is_megatron(self) -> bool:
        return self.page.stem == "megatron_lm"

    @property
    def is_olmo(self) -> bool:
        return self.page.stem == "olmo_core"

    @property
    def is_configuration(self) -> bool:
        """Whether "before" has a trainer's options instead of a program."""
        return self.heading in published_trainers.FORMULAS

    @property
    def is_cut(self) -> bool:
        """Whether the run ends before its decay does."""
        return self.past_the_end == "continues its decay"

    @property
    def limits(self) -> str:
        """The text that can exclude values: the page's introduction, and that of the section."""
        introduction, *_ = self.page.read_text(encoding="utf-8").split("\n## ", 1)
        return f"{introduction}\n{self.text}"

    def options(self) -> dict[str, Any]:
        """Return the options of the configuration "before", without the sections that they lie in."""
        pattern = {
            "sh": r"--([\w-]+)=(\S+)",
            "yaml": r"^ *(\w+): (.+)$",
            "py": r"^(\w+) = (.+)$",
        }[self.language]
        return {
            name.replace("-", "_"): _literal(value)
            for name, value in re.findall(pattern, self.before, re.MULTILINE)
        }

    def counting_updates(self) -> "Pair":
        """Count updates instead of samples, as the page describes for a constant batch size."""
        return self._replace(
            before=self.before.replace("batch * ", ""),
            after=self.after.replace("batch * ", "").replace(", unit=1", ""),
        )

    @property
    def past_the_end(self) -> str:
        """The phrase for how the original continues past the end; "" if as the curve does."""
        phrases = [phrase for phrase in PAST_THE_END if phrase in self.text]
        assert len(phrases) <= 1, self.heading
        return phrases[0] if phrases else ""


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read_pairs() -> list[Pair]:
    """Return every section with a block "before", and every style in Megatron-LM's table, whole and cut."""
    pairs: list[Pair] = _megatron_pairs()
    for page in PAGES:
        _, *parts = page.read_text(encoding="utf-8").split("\n## ")
        for part in parts:
            if "\nBefore:\n" in part:
                section = _SECTION.fullmatch(part)
                assert section, part
                pairs.append(Pair(page, *section.groups()[:-1]))
    return pairs


def _megatron_pairs() -> list[Pair]:
    page = FOLDER / "megatron_lm.md"
    introduction, *parts = page.read_text(encoding="utf-8").split("\n## ")
    (before,) = re.findall(r"Before:\n\n```py\n(.+?)```", introduction, re.DOTALL)
    after = {slug(part.partition("\n")[0]): part for part in parts}
    cut_text, cut_code = _text_and_code(after.pop("--lr-decay-iters-above---train-iters"))
    whole, ending = cut_code.split("curve = curve.part", 1)
    rows = _MEGATRON_ROW.findall(introduction)
    assert after.keys() == {anchor for *_, anchor in rows}
    pairs: list[Pair] = []
    for style, wsd_style, shape, anchor in rows:
        text, code = _text_and_code(after[anchor])
        arguments = f"--lr-decay-style {style}" + (wsd_style and f" --lr-wsd-decay-style {wsd_style}")
        original = before.replace("args.lr_decay_style", repr(style))
        original = original.replace("args.lr_wsd_decay_style", repr(wsd_style))
        code = f"shape = {shape!r}\n{code}" if shape else code
        pairs.append(Pair(page, arguments, text, "py", original, code))
        if style == "inverse-square-root":
            continue
        curve, _, _ = code.partition("scheduler = ")
        assert whole in curve or "linear-cosine" not in anchor
        shortened = f"{curve}curve = curve.part{ending}"
        pairs.append(Pair(page, f"{arguments}, cut", cut_text, "py", original, shortened))
    return pairs


def _text_and_code(section: str) -> tuple[str, str]:
    text, _, code = section.partition("```python\n")
    return text, code.rstrip().removesuffix("```")


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def page_settings(page: Path) -> dict[str, Any]:
    """Return the names that the page's first block sets, and their values."""
    namespace: dict[str, Any] = {}
    exec(next(sections(page)).python_blocks()[0], namespace)
    del namespace["__builtins__"]
    return namespace


def run(code: str, settings: Settings, steps: int) -> tuple[dict[str, Any], LearningRates]:
    """Run a block; return its names, and the learning rates of updates 0, 1, … that it schedules."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], settings["peak"], momentum=0.9)
    namespace: dict[str, Any] = {**settings, "optimizer": optimizer}
    with (
        patch.dict("sys.modules", _stand_in_modules(settings)),
        patch("plateau_jax.optax_schedule", _uncompiled),
    ):
        exec(code, namespace)
    if schedule := namespace.get("schedule"):
        vectorized = schedule if "curve" in namespace else jax.vmap(schedule)
        return namespace, np.asarray(vectorized(np.arange(steps)))
    scheduler = namespace["scheduler"] if "scheduler" in namespace else namespace["lr_scheduler"]
    if not isinstance(scheduler, LRScheduler):
        return namespace, np.array([scheduler(step) for step in range(steps)])
    lrs: list[float] = []
    for _ in range(steps):
        lrs += lrs_of(optimizer)
        advance(optimizer, scheduler)
    return namespace, np.array(lrs)


def run_configured(
    page: Path, code: str, settings: Settings, steps: int
) -> tuple[dict[str, Any], LearningRates]:
    """Run a page's introduction with other settings, then a block.

    Return its names, and the multiplier of each group at updates 0, 1, …: one row for each update.
    """
    namespace: dict[str, Any] = dict(settings)
    for block in next(sections(page)).python_blocks()[1:]:
        exec(block, namespace)
    with patch("plateau_jax.optax_schedule", _uncompiled):
        exec(code, namespace)
    if schedule := namespace.get("schedule"):
        lrs: LearningRates = np.asarray(schedule(np.arange(steps)), np.float64)
        return namespace, lrs[:, None] / settings["learning_rate"]
    schedulers = namespace["schedulers"] if "schedulers" in namespace else [namespace["scheduler"]]
    peaks = [group["initial_lr"] for scheduler in schedulers for group in scheduler.optimizer.param_groups]
    rows: list[list[float]] = []
    for _ in range(steps):
        rows.append([lr for scheduler in schedulers for lr in lrs_of(scheduler.optimizer)])
        for scheduler in schedulers:
            advance(scheduler.optimizer, scheduler)
    return namespace, np.array(rows) / peaks


def run_with_counts(
    pair: Pair, settings: Settings, counts: Sequence[int]
) -> tuple[list[float], list[float], list[float]]:
    """Return the learning rates before and after at updates of these counts, and the final one after."""
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], settings["peak"], momentum=0.9)
    namespaces: list[dict[str, Any]] = []
    with patch.dict("sys.modules", _stand_in_modules(settings)):
        for code in (pair.before, pair.after):
            namespaces.append({**settings, "optimizer": optimizer})
            exec(code, namespaces[-1])
    original, scheduler = (namespace["scheduler"] for namespace in namespaces)
    before: list[float] = []
    after: list[float] = []
    used = 0
    for count in counts:
        if pair.is_olmo:
            scheduler.step(count=count)
            tokens = settings["length"] * settings["batch"] * settings["total"]
            before.append(original(settings["peak"], used + count, tokens))
        else:
            before.append(original(used))
        after += lrs_of(optimizer)
        optimizer.step()
        used += count
        if not pair.is_olmo:
            scheduler.step(count=count)
    return before, after, lrs_of(optimizer)


def _uncompiled(curve: Curve, peak: float) -> Callable[[NDArray[Any]], LearningRates]:
    """Give the bits of `optax_schedule` without compiling for every generated curve."""
    return lambda steps: product(curve, peak, steps, x64=False)


def _stand_in_modules(settings: Settings) -> dict[str, ModuleType]:
    """Return stand-ins for the packages that are not installed, with formulas as their schedulers."""
    peak = settings["peak"]
    modules: dict[str, ModuleType] = {}
    for path, scheduler in {
        "cosine_plateau_scheduler.CosinePlateauScheduler": published.cosine_plateau,
        **{f"timm.scheduler.{kind}": partial(published.timm, kind) for kind in TIMM_SCHEDULERS},
        "torchtitan.components.optimizer.lr_scheduler.LRSchedulersContainer": SimpleNamespace(
            Config=partial(published.torchtitan, peak)
        ),
        "megatron.core.optimizer_param_scheduler.OptimizerParamScheduler": published.megatron,
        **{f"olmo_core.optim.scheduler.{name}": value for name, value in OLMO_CORE.items()},
        **{
            f"composer.optim.{kind}": partial(published_trainers.composer, kind, peak)
            for kind in published_trainers.COMPOSER_SCHEDULERS
        },
    }.items():
        module, _, name = path.rpartition(".")
        packages = module.split(".")
        for depth in range(1, len(packages) + 1):
            full = ".".join(packages[:depth])
            modules.setdefault(full, ModuleType(full))
        setattr(modules[module], name, scheduler)
    return modules
