"""The pages of docs/other_schedulers/: the blocks of each section, and the learning rates of "after"."""

import ast
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from support.docs.pages import ROOT, sections
from support.jax.jax_cases import product
from support.schedulers.runs import lrs_of

from plateau_jax import Curve

Settings = dict[str, Any]

FOLDER = ROOT / "docs" / "other_schedulers"
INDEX = FOLDER / "index.md"
PAGES = tuple(sorted(set(FOLDER.glob("*.md")) - {INDEX}))
PAST_THE_END = (
    "climbs again",
    "restarts again",
    "keeps falling",
    "continues its decay",
    "raises a `ValueError`",
    "jumps to the peak for one step",
)
"""Words by which a section describes an original that differs from the curve past the end."""


class Followed(NamedTuple):
    """A section that schedules other options of an optimizer."""

    original: str
    """The name of the function that records them."""
    options: tuple[str, ...]


FOLLOWED = {
    "Momentum and weight decay": Followed("index", ("momentum",)),
    "Muon's momentum and weight decay": Followed("nanochat_options", ("momentum", "weight_decay")),
    "train_gpt.py: Muon, Adam and the momentum": Followed("modded_momentum", ("momentum",)),
    "DINOv2's weight decay": Followed("dinov2_weight_decay", ("weight_decay",)),
}

_SECTION = re.compile(
    r"(.+?)\n\n(.+?)\n\nBefore:\n\n```(py|python|sh|yaml)\n(.+?)```\n\nAfter:\n\n```python\n(.+?)```\n*(.*)",
    re.DOTALL,
)
_MEGATRON_ROW = re.compile(
    r"^\| `(\S+)` \| (?:`(\S+)`)? ?\| (?:`\"(\S+)\"`)? ?\| \[.+\]\(#(.+)\) \|$", re.MULTILINE
)
_OPTION = {"sh": r"--([\w-]+)=(\S+)", "yaml": r"^ *(\w+): (.+)$", "py": r"^(\w+) = (.+)$"}


class Pair(NamedTuple):
    """A section of a page: the original scheduler, and code here that gives the same learning rates."""

    page: Path
    heading: str
    text: str
    language: str
    before: str
    after: str

    @property
    def is_configuration(self) -> bool:
        """Whether "before" has a trainer's options instead of a program."""
        return self.language in ("sh", "yaml") or "import" not in self.before

    @property
    def limits(self) -> str:
        """The text that can exclude values: the page's introduction, and that of the section."""
        introduction, *_ = self.page.read_text(encoding="utf-8").split("\n## ", 1)
        return f"{introduction}\n{self.text}"

    @property
    def past_the_end(self) -> str:
        """The phrase for how the original continues past the end; "" if as the curve does."""
        phrases = [phrase for phrase in PAST_THE_END if phrase in self.text]
        assert len(phrases) <= 1, self.heading
        return phrases[0] if phrases else ""

    @property
    def digest(self) -> str:
        """Identify "before", so that a change of it calls for a new record."""
        return hashlib.sha256(self.before.encode()).hexdigest()[:12]

    def options(self) -> dict[str, Any]:
        """Return the options of the configuration "before", without the sections that they lie in."""
        return {
            name.replace("-", "_"): _literal(value)
            for name, value in re.findall(_OPTION[self.language], self.before, re.MULTILINE)
        }

    def names(self) -> set[str]:
        """Return the names that the program after uses, and those that the program before does."""
        code = [*introduction(self.page), self.after, "" if self.is_configuration else self.before]
        return {node.id for node in ast.walk(ast.parse("\n".join(code))) if isinstance(node, ast.Name)}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def introduction(page: Path) -> tuple[str, ...]:
    """Return the page's first blocks, without the one that sets the names."""
    return next(sections(page)).python_blocks()[1:] if page != INDEX else ()


def page_settings(page: Path) -> dict[str, Any]:
    """Return the names that the page's first block sets, and their values."""
    if page == INDEX:
        return {}
    namespace: dict[str, Any] = {}
    exec(next(sections(page)).python_blocks()[0], namespace)
    del namespace["__builtins__"]
    return namespace


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


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
    return pairs + [variant(pair) for pair in pairs for variant in _VARIANTS.get(pair.heading, ())]


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


def _named(pair: Pair, pattern: str, ending: str, limit: str) -> Pair:
    """Return the code that a section's text gives for a special case."""
    (expression,) = re.findall(rf"`({pattern}\(.+?\))`", pair.text)
    curve = expression if pattern == "lambda_lr" else f"lambda_lr(optimizer, {expression})"
    imports = "from plateau_jax import StagedCurve\nfrom torch_bridge import lambda_lr\n"
    return pair._replace(heading=pair.heading + ending, text=limit, after=f"{imports}scheduler = {curve}")


def _edited(pair: Pair, ending: str, before: tuple[str, str], after: tuple[str, str]) -> Pair:
    assert before[0] in pair.before
    assert after[0] in pair.after
    return pair._replace(
        heading=pair.heading + ending, before=pair.before.replace(*before), after=pair.after.replace(*after)
    )


_VARIANTS: dict[str, list[Callable[[Pair], Pair]]] = {
    "OneCycleLR": [
        lambda pair: _named(pair, "lambda_lr", ", no warmup", "with a warmup of 0; raises a `ValueError`")
    ],
    "torchtitan before June 2025, lr_min": [
        lambda pair: _named(
            pair, "StagedCurve", ", shapes", "a constant phase of at least one update; continues its decay"
        )
    ],
    "get_inverse_sqrt_schedule": [
        lambda pair: _edited(
            pair, ", timescale", ("warmup)", "warmup, timescale=period)"), ("warmup or 10_000", "period")
        )
    ],
    "get_wsd_schedule": [
        lambda pair: _edited(
            pair,
            ", cosine warmup",
            ("decay_type=", "warmup_type='cosine', decay_type="),
            ("(warmup, 1.0)", "(warmup, 1.0, 'cosine')"),
        )
    ],
    "CosinePlateauScheduler": [lambda pair: pair._replace(heading=f"{pair.heading}, 32.3 %")],
}
"""The special cases that the text of a section describes."""


def run(pair: Pair, settings: Settings) -> dict[str, Any]:
    """Run the page's introduction with these values, then the block "after"; return its names."""
    namespace = page_settings(pair.page) | settings
    with patch("plateau_jax.optax_schedule", _uncompiled):
        for block in (*introduction(pair.page), pair.after):
            exec(block, namespace)
    return namespace


def _uncompiled(curve: Curve, peak: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Give the bits of `optax_schedule` without compiling for every curve."""
    return lambda steps: product(curve, peak, steps, x64=False)


def levels(names: dict[str, Any], case: dict[str, Any]) -> NDArray[np.float64]:
    """Return the multipliers of the updates of a recorded case: a column for each group."""
    updates = list(case.get("updates", range(len(case["levels"]))))
    if schedule := names.get("schedule"):
        peak = names["peak"] if "peak" in names else names["learning_rate"]
        return np.asarray(schedule(np.array(updates)), np.float64)[:, None] / peak
    schedulers = names["schedulers"] if "schedulers" in names else [names["scheduler"]]
    peaks = [group["initial_lr"] for scheduler in schedulers for group in scheduler.optimizer.param_groups]
    counts, before_update = case.get("counts"), case["page"] == "olmo_core"
    calls: list[dict[str, int]] = (
        [{"count": count} for count in counts] if counts else [{}] * (updates[-1] + 1)
    )
    rows: list[list[float]] = []
    for call in calls:
        for scheduler in schedulers if before_update else ():
            scheduler.step(**call)
        rows.append([lr for scheduler in schedulers for lr in lrs_of(scheduler.optimizer)])
        for scheduler in schedulers:
            scheduler.optimizer.step()
            if not before_update:
                scheduler.step(**call)
    return np.array(rows)[updates] / peaks
