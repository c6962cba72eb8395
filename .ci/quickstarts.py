"""Writes the first programs of the tutorial as files, one for each framework.

    python .ci/quickstarts.py FOLDER

Each file is named by the extras that its imports need. They are the sections whose headings begin
with "Train in".
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.docs.pages import ROOT, sections

PACKAGES = {"jax": {"jax", "optax"}, "torch": {"torch", "torch_bridge"}}
TUTORIAL = ROOT / "docs" / "tutorial.md"
programs = [
    section.python() for section in sections(TUTORIAL) if section.heading.startswith("Train in")
]
files: dict[str, list[str]] = defaultdict(list)
for program in programs:
    imported = set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE))
    extras = ",".join(extra for extra, packages in PACKAGES.items() if packages & imported)
    files[extras].append(program)
assert {extras: len(texts) for extras, texts in files.items()} == {"jax": 1, "torch": 1}
for extras, texts in files.items():
    Path(sys.argv[1], f"quickstart-{extras}.py").write_text("\n".join(texts), encoding="utf-8")
