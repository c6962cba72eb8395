"""docs/design.md: its commands open the page, and an example draws its pictures."""

import json
import re
import shlex
import shutil

import matplotlib.image
import pytest
from support.design.browser import chromium
from support.docs.pages import ROOT, sections
from support.programs import EXAMPLES, run

from plateau_jax import PlateauCurve
from plateau_jax.__main__ import main

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "design.md"
LINES = [
    line
    for section in sections(PAGE)
    for block in section.blocks
    if block.language == "sh"
    for line in block.code.splitlines()
]
COMMANDS = [line for line in LINES if line.startswith("python -m plateau_jax")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_open_design_page(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("curve.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(PlateauCurve(100).to_dict()))
    opened: list[object] = []
    monkeypatch.setattr("plateau_jax.design.server.serve", lambda curves, *_, **__: opened.extend(curves))
    assert main(shlex.split(command, comments=True)[3:]) == 0
    assert opened


def test_example_draws_the_pictures(tmp_path):
    with chromium():
        pass  # skips the test if Chromium is not installed
    script = tmp_path / "examples" / "plot_design.py"
    script.parent.mkdir()
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    shutil.copy(EXAMPLES / "plot_design.py", script)
    shutil.copy(PAGE.with_name("forecast.md"), tmp_path / "docs")
    run(script, folder=tmp_path)
    names = re.findall(r"\((pictures/.+?)\)", PAGE.read_text(encoding="utf-8"))
    assert len(names) == 2
    for name in names:
        shapes = [matplotlib.image.imread(folder / "docs" / name).shape for folder in (tmp_path, ROOT)]
        assert shapes[0] == shapes[1]
