"""Record the bits of curves, and the digests of their tables.

`python -m golden.write`, in `tests/`, writes both files. If `git diff` shows that a line
has changed, a learning rate has: CHANGELOG names the curves and the steps.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from golden.tables import describe_tables
from support.golden.curves import CURVES, describe_learning_rates

FOLDER = Path(__file__).parent
LEARNING_RATES = FOLDER / "learning_rates.json"
TABLES = FOLDER / "tables.json"


def describe_curves() -> dict[str, Any]:
    """Return what is recorded of each curve's learning rates."""
    return {name: describe_learning_rates(curve) for name, curve in CURVES.items()}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, recorded: Mapping[str, Any]) -> None:
    """Write one entry per line, sorted by name."""
    lines = [f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in sorted(recorded)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(LEARNING_RATES, describe_curves())
    write(TABLES, describe_tables())
