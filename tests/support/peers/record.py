"""Record the learning rates of the originals in docs/other_schedulers/ with their own code.

In `tests/`, in the environment of the tests, with torch, transformers and optax at the versions of the pages:

    python -m support.peers.record FOLDER [PAGE …]

FOLDER keeps the sources of the other libraries: single files from GitHub and three wheels from the Python
Package Index, which `originals.CITED` names. They are downloaded if they are not there, and not installed.
PAGE is the name of a page to record, such as `timm`; without any, all pages are.

`learning_rates.jsonl` gets a line with the source of each page and how it was run, and a line for each
section, with the digest of its block "before" and its cases. A case has values for the names of the page, and
the multiplier of each update, with 12 digits. Where they are needed, it has the samples or tokens of each
update, the numbers of the updates, otherwise 0, 1, 2, …, and the error that the original raises then.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from support.docs.other_schedulers import FOLLOWED, INDEX, PAGES, Pair, Settings, page_settings, read_pairs
from support.peers import originals, settings, sources

RECORD = Path(__file__).with_name("learning_rates.jsonl")

_LENGTHS: dict[str, Callable[[Settings], int]] = {
    "nanoGPT, lr_decay_iters above max_iters": lambda row: row["max_iters"] + 1,
    "nanogpt": lambda row: row["lr_decay_iters"],
    "nanochat": lambda row: row["num_iterations"],
    "modded_nanogpt": lambda row: row["num_scheduled_iterations"] + row["num_extension_iterations"],
    "litgpt pretrain": originals.micro_batches,
    "litgpt": lambda row: row["max_steps"],
    "maxtext": lambda row: row["steps"],
    "dinov2": lambda row: row["OFFICIAL_EPOCH_LENGTH"] * row["epochs"],
    "open_clip": lambda row: row["epochs"] * row["updates"],
    "lingua": lambda row: row["steps"],
    "levanter": lambda row: row["num_train_steps"],
    "index": lambda row: row["total"],
    "nanotron": lambda row: row["lr_decay_starting_step"] + row["lr_decay_steps"],
}
"""Updates in the run of a configuration, by its section or its page."""


def cases(pair: Pair) -> Iterator[dict[str, Any]]:
    page = pair.page.stem
    for row in settings.rows(pair):
        if page in ("megatron_lm", "olmo_core"):
            for counts in settings.counts(row, pair):
                levels = getattr(originals, page)(pair, row | {"counts": counts})
                yield {"settings": row, "counts": counts} | recorded(levels, range(len(counts)))
        elif pair.is_configuration:
            options = pair.options() | row
            length = _LENGTHS.get(pair.heading, _LENGTHS.get(page))
            assert length
            past = 8 if re.search("past the (end|last)", pair.text, re.IGNORECASE) else 0
            levels = getattr(originals, page)(pair, options)
            yield {"settings": row} | recorded(levels, range(length(options) + past))
        else:
            yield {"settings": row} | recorded(getattr(originals, page)(pair, row), settings.updates(row))


def followed_cases(page: Path, heading: str) -> Iterator[dict[str, Any]]:
    for row in settings.SECTIONS.get(heading) or settings.PAGES[page.stem]:
        levels = getattr(originals, FOLLOWED[heading].original)(page_settings(page) | row)
        length = _LENGTHS[page.stem](row)
        yield {"settings": row} | recorded(levels, [each for each in settings.updates(row) if each < length])


def recorded(levels: originals.Levels, updates: Iterable[int]) -> dict[str, Any]:
    """Return the levels of these updates, up to one at which the original raises an error."""
    updates, kept, error = list(updates), dict[int, Any](), ""
    try:
        for update, level in zip(range(updates[-1] + 1), levels, strict=False):
            kept[update] = [_digits(each) for each in level] if isinstance(level, list) else _digits(level)
    except (AssertionError, ValueError) as raised:
        error = type(raised).__name__
    case = {"levels": [kept[update] for update in updates if update in kept]}
    if updates != list(range(len(updates))):
        case["updates"] = [update for update in updates if update in kept]
    return case | ({"raises": error} if error else {})


def _digits(level: float) -> float:
    """Round to 12 digits: more than the tests compare, and fewer than differ between two machines."""
    return float(f"{level:.12g}")


def read_record() -> tuple[dict[str, dict[str, str]], list[dict[str, Any]]]:
    """Return the source of each page, and the sections."""
    header, *recorded = map(json.loads, RECORD.read_text("utf-8").splitlines())
    return header["sources"], recorded


def main(folder: str, *names: str) -> None:
    sources.FOLDER = Path(folder)
    header, lines = read_record()
    lines = [section for section in lines if names and section["page"] not in names]
    for page in (*PAGES, INDEX):
        if names and page.stem not in names:
            continue
        original = getattr(originals, page.stem)
        header[page.stem] = {"source": originals.CITED[page.stem], "run": original.__doc__}
        text, pairs = page.read_text("utf-8"), [pair for pair in read_pairs() if pair.page == page]
        found = {pair.heading: (pair.digest, cases(pair)) for pair in pairs}
        found |= {name: ("", followed_cases(page, name)) for name in FOLLOWED if f"\n## {name}\n" in text}
        for heading, (digest, recorded) in found.items():
            print(f"{page.stem}: {heading}")
            lines.append({"page": page.stem, "section": heading, "before": digest, "cases": list(recorded)})
    lines.sort(key=lambda section: (section["page"], section["section"]))
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in ({"sources": header}, *lines))
    RECORD.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
