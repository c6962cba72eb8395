"""Write what programs print into the `text` blocks of the pages.

`python -m support.docs.write [PAGE …]`, in `tests/`, runs the programs of these pages, such as
`docs/curves.md`, by default of all. Run it after a change of what `describe` or another table
prints. A block follows the Python blocks, or the commands, whose output it shows. Comments after a
`print` are written by hand.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from support.docs.pages import CONTINUES, PAGES, ROOT, Block, sections

_END_OF_OUTPUT = "-- end of the output of a block --\n"


def rewrite(page: Path) -> None:
    """Replace each text block of a page by what the blocks before it print."""
    introduction, *rest = sections(page)
    content = page.read_text(encoding="utf-8")
    for section in [introduction, *rest]:
        preceding: list[Block] = []
        if CONTINUES in section.sentences:
            preceding = introduction.blocks
        for shown, printed in _outputs(preceding, section.blocks):
            content = content.replace(_fenced(shown), _fenced(printed))
    page.write_text(content, encoding="utf-8")


def _outputs(introduction: Sequence[Block], blocks: Sequence[Block]) -> list[tuple[str, str]]:
    """Return each text block of a section, and what the program now prints in its place."""
    shown = [block.code for block in blocks if block.language == "text"]
    if not shown or any(block.file for block in blocks):
        return []
    program = "import subprocess\n"
    for block in introduction:
        if block.language == "python":
            program += block.code
    for block, following in zip_longest(blocks, blocks[1:]):
        shows_output = following is not None and following.language == "text"
        if block.language == "python":
            program += block.code
        elif block.language == "sh" and shows_output:  # not a command that installs something
            program += f"subprocess.run({block.code!r}, shell=True, check=True)\n"
        elif block.language == "text":
            program += f"print({_END_OF_OUTPUT!r}, end='', flush=True)\n"
    *printed, _ = _run(program).split(_END_OF_OUTPUT)
    comments = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)
    outputs: list[tuple[str, str]] = []
    for before, now in zip(shown, printed, strict=True):
        if not now:
            continue  # the block shows something other than output
        outputs.append((before, _without_comments(before, now, comments)))
    return outputs


def _run(program: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program, encoding="utf-8")
        command = [sys.executable, "-u", file]
        ended = subprocess.run(
            command, cwd=folder, check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
    return ended.stdout


def _without_comments(shown: str, printed: str, comments: Sequence[str]) -> str:
    """Leave out the lines that comments in the program show, unless the block shows them too."""
    kept: list[str] = []
    for line in printed.splitlines(keepends=True):
        text = line.rstrip("\n")
        if text not in comments or text in shown.splitlines():
            kept.append(line)
    return "".join(kept)


def _fenced(text: str) -> str:
    return f"```text\n{text}```"


if __name__ == "__main__":
    pages = [ROOT / name for name in sys.argv[1:]]
    for page in pages or PAGES:
        rewrite(page)
