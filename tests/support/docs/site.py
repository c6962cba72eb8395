"""Build the documentation site with the command of CONTRIBUTING, and read its pages and reference."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).parents[3]


def build_site(folder: Path) -> None:
    """Build the site into this folder with the command of CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python (-m sphinx .*) build/site$", text, re.MULTILINE)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, *shlex.split(command), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def read_pages(folder: Path) -> dict[str, BeautifulSoup]:
    """Return the pages by their paths in the folder."""
    return {
        path.relative_to(folder).as_posix(): BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in sorted(folder.rglob("*.html"))
        if "_static" not in path.parts
    }


def descriptions(page: BeautifulSoup) -> dict[str, Tag]:
    """Return the description of each name on a reference page, in order, without those of its members."""
    result: dict[str, Tag] = {}
    for heading in page.select("dl.py > dt.sig[id]"):
        body = heading.find_next_sibling("dd")
        assert body is not None
        description = BeautifulSoup(str(body), "html.parser")
        for member in description.select("dd dl.py"):
            member.decompose()
        result[str(heading["id"])] = description
    return result
