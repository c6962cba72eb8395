"""Write what programs print into the `text` blocks of the pages.

`python -m docs.write [PAGE …]`, in `tests/`, runs the programs of these pages, such as
`docs/curves.md`, by default of all. Run it after a change of what `describe` or another table
prints. Comments after a `print` are written by hand. Lines about the machine, such as the time of a
run, are removed by hand.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from support.docs.pages import PAGES, ROOT, PageProgram, assert_printed, programs, shown_lines


def rewrite(page: Path) -> None:
    """Replace the output that each section of a page shows by what its program prints."""
    content = page.read_text(encoding="utf-8")
    for program in programs():
        if program.page == page and program.shown:
            printed = _fenced(_output_of(program))
            content = content.replace(_fenced(program.shown), printed)
    page.write_text(content, encoding="utf-8")


def _output_of(program: PageProgram) -> str:
    """Return what a program and its commands print.

    Without the lines that comments show, unless the section shows them too.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program.code, encoding="utf-8")
        printed = _run(f"{sys.executable} {file}", folder)
        of_commands = "".join(_run(commands, folder) for commands in program.commands)
    if not set(shown_lines(program.code).values()) & set(program.shown.splitlines()):
        printed = assert_printed(program.code, printed)
    return printed + of_commands


def _run(command: str, folder: str) -> str:
    ended = subprocess.run(
        command, shell=True, cwd=folder, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return ended.stdout


def _fenced(text: str) -> str:
    return f"```text\n{text}```"


if __name__ == "__main__":
    pages = [ROOT / name for name in sys.argv[1:]]
    for page in pages or PAGES:
        rewrite(page)
