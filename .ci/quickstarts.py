"""Writes the tutorial's training programs as files, each named by the extras that its imports need.

    python .ci/quickstarts.py FOLDER

Their headings begin with "Train in".
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.docs.pages import ROOT, sections

PACKAGES = {"jax": {"jax", "optax"}, "torch": {"torch", "torch_bridge"}}
TUTORIAL = ROOT / "docs" / "tutorial.md"
programs = [
    section.python() for section in sections(TUTORIAL) if section.heading.startswith("Train in")
]
assert len(programs) == 2, "the tutorial must have two sections whose headings begin with Train in"
for program in programs:
    imported = set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE))
    extras = ",".join(extra for extra, packages in PACKAGES.items() if packages & imported)
    Path(sys.argv[1], f"quickstart-{extras}.py").write_text(program, encoding="utf-8")
