"""Every section of the README and of the pages in `docs/` runs as a program; links lead somewhere.

A section is what stands under a heading with two signs. Its Python blocks run from top to bottom, after those
that stand before the page's first such heading.
"""

import re
import runpy
from pathlib import Path

import pytest
from support.docs.pages import PAGES, ROOT, sections

_OF_LIGHTNING = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
WARNINGS_OF_OTHERS = {
    "PyTorch Lightning": _OF_LIGHTNING,
    "PyTorch Lightning, counting tokens": _OF_LIGHTNING,
    # torch's compiler, of torch itself.
    "A compiled optimizer": "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
}
"""By heading: what a library says of itself."""


def programs():
    for page in PAGES:
        first, *others = sections(page)
        for section in others or [first]:
            if code := section.python():
                before = "" if section is first else first.python()
                known = WARNINGS_OF_OTHERS.get(section.heading)
                marks = [pytest.mark.filterwarnings(known)] if known else []
                name = f"{page.stem}-{section.heading or 'whole'}"
                yield pytest.param(f"{before}\n{code}", id=name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("program", list(programs()))
def test_sections_run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # programs save files here
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")
    printed = iter(capsys.readouterr().out.splitlines())
    for shown in re.findall(r"^print\(.*\)  # (.+)$", program, re.MULTILINE):
        assert shown in printed, shown  # after the line that was found before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for script in re.findall(r"(examples/[\w/]+\.\w+)", text):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_within_a_page_lead_to_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
