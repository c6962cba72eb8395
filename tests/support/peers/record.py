"""Record the learning rates of other libraries' schedulers again, with the libraries' own code.

In `tests/`, in the environment of the tests:

    python -m support.peers.record FOLDER [LIBRARY …]

FOLDER keeps the sources of the libraries: single files from GitHub and three wheels from the Python Package
Index. They are downloaded if they are not there, and not installed. The first line of `learning_rates.jsonl`
has their commits and versions: change one there, and record again. torch, transformers and optax must be
installed at these versions. LIBRARY is the heading of a section of the pages, such as `timm`; without any,
all are recorded.

Each other line has an original, as a row of the pages names it, and its cases. A case has values for the
names of the row, and the multiplier of each update, with 12 digits. Where they are needed, it has the samples
or tokens of each update (`counts`), the numbers of the updates, otherwise 0, 1, 2, …, and the error that the
original raises then. In a new case, leave out `levels`.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.docs.other_schedulers import COUNTED, in_samples
from support.peers import originals, sources

RECORD = Path(__file__).with_name("learning_rates.jsonl")


def read_record() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the source of each library, and the originals with their cases."""
    sources, *lines = map(json.loads, RECORD.read_text("utf-8").splitlines())
    return sources, lines


def recorded(levels: originals.Levels, case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with the levels of its updates, up to one at which the original raises an error."""
    length = len(case.get("counts") or case.get("levels") or range(36))
    updates = set(case.get("updates") or range(length + ("raises" in case)))
    kept, error = list[Any](), dict[str, str]()
    try:
        for update, level in zip(range(max(updates) + 1), levels, strict=False):
            if update in updates:
                kept.append([*map(_digits, level)] if isinstance(level, list) else _digits(level))
    except (AssertionError, ValueError) as raised:
        if not kept:
            raise
        error = {"raises": type(raised).__name__}
    inputs = {key: case[key] for key in ("settings", "counts", "updates") if key in case}
    return inputs | {"levels": kept} | error


def _digits(level: float) -> float:
    """Round to 12 digits: more than the tests compare, and fewer than differ between two machines."""
    return float(f"{level:.12g}")


def main(folder: str, *libraries: str) -> None:
    sources.FOLDER = Path(folder)
    header, lines = read_record()
    for name in ("torch", "transformers", "optax"):
        assert header[name] == f"{name}=={version(name).partition('+')[0]}", f"another {name} is installed"
    sources.CITED |= header
    for line in lines:
        library, original = line["library"], line["original"]
        if libraries and library not in libraries:
            continue
        print(f"{library}: {original}")
        run = getattr(originals, library.lower().replace("-", "_"))
        for index, case in enumerate(line["cases"]):
            settings = case["settings"]
            if library in COUNTED:
                settings = in_samples(settings) | {"counts": case["counts"]}
            line["cases"][index] = recorded(run(original, settings), case)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (header, *lines))
    RECORD.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
