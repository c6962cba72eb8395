"""Print which rows have aged: those whose library now gives other learning rates than recorded.

In `tests/`, in an environment that has the libraries: `python -m support.peers.aged`.

The calls of torch, transformers and optax run again. A row is named if its call fails, or if it
gives other learning rates. Of the other libraries that are installed, only the versions are
compared: record their rows again by hand.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from support.peers.record import INSTALLED, levels, read_record, record

TOLERANCE = 2.0**-22
"""The error of an original in float32, as a fraction of the peak."""


def changed_rows(library: str, lines: list[dict[str, Any]]) -> list[str]:
    """Return the rows of an installed library that no longer give what was recorded."""
    rows: list[str] = []
    for line in lines:
        if line["library"] != library:
            continue
        original = line["original"]
        try:
            if any(is_changed(library, original, case) for case in line["cases"]):
                rows.append(original)
        except Exception as error:
            rows.append(f"{original}: {type(error).__name__}: {error}")
    return rows


def is_changed(library: str, original: str, case: dict[str, Any]) -> bool:
    again = dict(case)
    record(again, levels(library, original, case["settings"]))
    if again.get("raises") != case.get("raises"):
        return True
    if len(again["levels"]) != len(case["levels"]):
        return True
    return not np.allclose(again["levels"], case["levels"], rtol=0.0, atol=TOLERANCE)


def installed_version(distribution: str) -> str:
    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return ""


def report(sources: dict[str, str], lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each installed library, and one each for those that are not checked."""
    missing: list[str] = []
    commits: list[str] = []
    for library, source in sorted(sources.items(), key=lambda item: item[0].lower()):
        repository, at, commit = source.partition("@")
        if at:
            commits.append(f"{library} {commit[:7]}")
            continue
        distribution, _, recorded = repository.partition("==")
        installed = installed_version(distribution)
        versions = f"{library} {recorded} recorded, {installed} installed"
        if not installed:
            missing.append(f"{library} {recorded}")
        elif library in INSTALLED:
            rows = changed_rows(library, lines)
            yield "\n    ".join([f"{versions}: {len(rows)} rows differ", *rows])
        elif installed == recorded:
            yield versions
        else:
            yield f"{versions}: record its rows again"
    yield f"Not installed: {', '.join(missing)}"
    yield f"Recorded at a commit: {', '.join(commits)}"


def main() -> None:
    for line in report(*read_record()):
        print(line)


if __name__ == "__main__":
    main()
