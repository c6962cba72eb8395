"""Writes the README's quickstarts as programs, each named by the extras that its imports need.

    python .ci/quickstarts.py FOLDER

A quickstart is a section whose heading begins with this word.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.docs.pages import README, sections

PACKAGES = {"jax": {"jax", "optax"}, "torch": {"torch", "torch_bridge"}}
programs = [section.python() for section in sections(README) if section.heading.startswith("Quickstart")]
assert programs, "the README has no section whose heading begins with Quickstart"
for program in programs:
    imported = set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE))
    extras = ",".join(extra for extra, packages in PACKAGES.items() if packages & imported)
    Path(sys.argv[1], f"quickstart-{extras}.py").write_text(program, encoding="utf-8")
