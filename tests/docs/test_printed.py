"""Programs and commands of a page print the output that the page shows."""

import contextlib
import io
import subprocess
import sys

import pytest
from support.docs.pages import ROOT, sections

pytestmark = pytest.mark.slow


def programs():
    """Yield each section, with the code before the first one."""
    for name in ("choosing", "curves", "forecast"):
        introduction, *rest = sections(ROOT / "docs" / f"{name}.md")
        for section in rest:
            yield pytest.param(introduction.python(), section, id=f"{name}-{section.heading}")


@pytest.mark.parametrize(("before", "section"), list(programs()))
def test_programs_print_the_output_on_the_page(before, section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONUTF8", "1")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(f"{before}\n{section.python()}", {})
    printed = output.getvalue()
    for block in section.blocks:
        if block.language == "sh":
            commands = block.code.replace("python -m", f"{sys.executable} -m")
            printed += subprocess.run(
                commands, shell=True, check=True, capture_output=True, encoding="utf-8"
            ).stdout
    assert printed == "".join(block.code for block in section.blocks if block.language == "text")
