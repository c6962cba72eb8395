"""Every section of the README and of the pages in `docs/` runs as a program, and every link resolves.

A section is everything under a second-level heading. Its Python blocks run from top to bottom, after the
blocks before the first such heading of the page.
"""

import itertools
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpointing.checkpoints import Part
from support.docs.pages import PAGES, ROOT, assert_printed, programs
from support.training.trees import equal_trees
from torch.nn import Linear

from torch_bridge import Checkpoints

_LIGHTNING_WARNING = r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
IGNORED_WARNINGS = {
    "PyTorch Lightning": _LIGHTNING_WARNING,
    "PyTorch Lightning, counting tokens": _LIGHTNING_WARNING,
    # torch's compiler calls a deprecated function of torch.
    "A compiled optimizer": "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    # torch.distributed.checkpoint in a single process.
    "`KeyError: \"param 'initial_lr' is not specified in param_groups[0]…\"`: DCP drops `initial_lr`": (
        "ignore:torch.distributed is disabled:UserWarning"
    ),
}
"""Warnings that a library causes in its own code, by heading."""


def program_parameters():
    for program in programs():
        ignored = IGNORED_WARNINGS.get(program.heading)
        marks = [pytest.mark.filterwarnings(ignored)] if ignored else []
        yield pytest.param(program.code, id=program.name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("code", list(program_parameters()))
def test_sections_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # programs save files here
    file = tmp_path / "program.py"
    file.write_text(code, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")
    assert_printed(code, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "absent", [["jax", "jaxlib"], ["torch"], []], ids=["torch alone", "JAX alone", "both"]
)
def test_sections_run_twice_in_one_folder(absent, tmp_path, monkeypatch):
    """One process runs all of them, without the blocks that need an absent package."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    command = [sys.executable, "-m", "support.docs.environments", *absent]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_run_saved_on_ctrl_c_trains_on_every_batch(tmp_path, monkeypatch, capsys):
    """Stopped twice in the middle of an update, it ends like an uninterrupted run."""
    (program,) = (program for program in programs() if program.heading == "Save on Ctrl-C")
    code, handler, forward = (
        compile(program.code, "page", "exec"),
        signal.getsignal(signal.SIGINT),
        Linear.forward,
    )
    states = []
    for name, stops in (("uninterrupted", []), ("stopped", [7, 37])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        calls = itertools.count(1)

        def stopped(module, inputs, calls=calls, stops=stops):
            if next(calls) in stops:
                signal.raise_signal(signal.SIGINT)
            return forward(module, inputs)

        monkeypatch.setattr(Linear, "forward", stopped)
        for _ in range(1 + len(stops)):
            exec(code, {"__name__": "__main__"})
        step, loader = Part(), Part()
        assert Checkpoints("run_interrupted").load(step=step, loader=loader) == 200
        states.append([step.state, loader.state])
    assert equal_trees(*states)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"saved after update {update}" for update in (200, 7, 37, 200)]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_curves_come_from_plateau_jax(page: Path) -> None:
    """One import on all pages, though torch_bridge exports curves too."""
    imported = re.findall(r"^from torch_bridge import (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert not {name for names in imported for name in names.split(", ") if name.endswith("Curve")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for script in re.findall(r"(examples/[\w/]+\.\w+)", text):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_within_page_match_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_contents_of_troubleshooting_link_every_symptom():
    contents = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    headings = [
        (page, heading)
        for page in sorted((ROOT / "docs" / "troubleshooting").glob("*.md"))
        for heading in re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(headings) > 45
    links = set(re.findall(r"\]\((troubleshooting/[^)]+)\)", contents))
    anchors = {
        f"troubleshooting/{page.name}#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for page, heading in headings
    }
    assert {link for link in links if "#" in link} == anchors
