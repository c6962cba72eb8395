"""The documentation site, as its command builds it, and its reference by name."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).parents[3]


def build(folder: Path) -> None:
    """Run the command of CONTRIBUTING, into this folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python (-m sphinx .*) build/site$", text, re.MULTILINE)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *shlex.split(command), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def pages(folder: Path) -> dict[str, BeautifulSoup]:
    """The pages under their paths in the folder."""
    return {
        path.relative_to(folder).as_posix(): BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in sorted(folder.rglob("*.html"))
        if "_static" not in path.parts
    }


def described(page: BeautifulSoup) -> dict[str, Tag]:
    """What a page of the reference says of each name in its order, without what it says of its members."""
    found: dict[str, Tag] = {}
    for heading in page.select("dl.py > dt.sig[id]"):
        body = heading.find_next_sibling("dd")
        assert body is not None
        own = BeautifulSoup(str(body), "html.parser")
        for member in own.select("dd dl.py"):
            member.decompose()
        found[str(heading["id"])] = own
    return found
