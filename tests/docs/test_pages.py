"""Every section of the README and of `docs/` runs as a program, and every link resolves.

A section is everything under a second-level heading. Its Python blocks run from top to bottom,
after the blocks before the first such heading of the page. A program that writes files runs a
second time in the same folder. `tests/trainers/` runs the programs that resume.
"""

import ast
import itertools
import re
import runpy
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.checkpointing.checkpoints import Part
from support.docs.pages import (
    PAGES,
    README,
    ROOT,
    assert_printed,
    program_named,
    programs,
    sections,
)
from support.training.steps import equal_trees
from torch.nn import Linear

import plateau_jax
import torch_bridge
from torch_bridge import Checkpoints

DCP_DROPS_INITIAL_LR = (
    "`KeyError: \"param 'initial_lr' is not specified in param_groups[0]…\"`: "
    "DCP drops `initial_lr`"
)

IGNORED_WARNINGS = {
    # torch.distributed.checkpoint in a single process.
    DCP_DROPS_INITIAL_LR: "ignore:torch.distributed is disabled:UserWarning",
    "Continue a run that began with the Trainer's own scheduler": (
        "ignore:state_dict was saved by a scheduler without a curve:plateau_jax.CurveWarning"
    ),
}
"""Warnings that a library causes in its own code, or that the page announces, by heading."""

CODE_WIDTH = 88
"""The characters in a line of a code block of the README that GitHub shows without a scroll bar."""

FIGURES_DIFFER = {"Train in JAX", "Train in PyTorch", "The same bits everywhere"}
"""Headings of programs that print losses or times, which depend on the machine."""


def program_parameters():
    for program in programs():
        if not program.resumes:
            ignored = IGNORED_WARNINGS.get(program.heading)
            marks = [pytest.mark.filterwarnings(ignored)] if ignored else []
            yield pytest.param(program, id=program.name, marks=marks)


def run_commands(commands):
    """Run a shell block with this Python; return what it prints."""
    commands = commands.replace("python -m", f"{sys.executable} -m")
    return subprocess.run(
        commands, shell=True, check=True, capture_output=True, encoding="utf-8"
    ).stdout


def assert_prints_what_it_shows(program, printed):
    """Check what a program printed, and what the commands of its section print."""
    others = assert_printed(program.code, printed)  # the lines that no comment shows
    if program.shown:
        commanded = "".join(run_commands(commands) for commands in program.commands)
        texts = [program.shown, printed + commanded, others + commanded]
        if program.heading in FIGURES_DIFFER:
            texts = [re.sub(r"[\d.e+-]+", "", text) for text in texts]
        shown, *possible = texts
        assert shown in possible


@pytest.mark.slow
@pytest.mark.parametrize("program", list(program_parameters()))
def test_sections_run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # programs save files here
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONUTF8", "1")
    file = tmp_path / "program.py"
    file.write_text(program.code, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")
    assert_prints_what_it_shows(program, capsys.readouterr().out)
    if list(tmp_path.iterdir()) != [file]:
        # It finds the files of its first run, and overwrites them or resumes.
        runpy.run_path(str(file), run_name="__main__")
        assert_prints_what_it_shows(program, capsys.readouterr().out)


def test_readme_prints_what_it_shows(capsys):
    introduction, *rest = sections(README)
    shown = "".join(block.code for block in introduction.blocks if block.language == "text")
    exec(introduction.python() + "".join(section.python() for section in rest), {})
    assert capsys.readouterr().out == shown + "True\n"


def test_readme_code_fits_the_box_on_github():
    code = "".join(block.code for section in sections(README) for block in section.blocks)
    assert [line for line in code.splitlines() if len(line) > CODE_WIDTH] == []


@pytest.mark.slow
def test_run_saved_on_ctrl_c_trains_on_every_batch(tmp_path, monkeypatch, capsys):
    """Stopped twice in the middle of an update, it ends like an uninterrupted run."""
    code = compile(program_named("Save on Ctrl-C").code, "page", "exec")
    handler, forward = signal.getsignal(signal.SIGINT), Linear.forward
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


def test_every_public_name_is_in_a_program():
    """`torch_bridge` reexports names of `plateau_jax`, but has its own `multiplier`."""
    shown = {"plateau_jax": set(), "torch_bridge": set()}
    for page in PAGES:
        tree = ast.parse("\n".join(section.python() for section in sections(page)))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in shown:
                shown[node.module] |= used & {alias.name for alias in node.names}
    reexported = set(plateau_jax.__all__) - {"multiplier"}
    assert set(plateau_jax.__all__) - shown["plateau_jax"] == set()
    assert set(torch_bridge.__all__) - shown["torch_bridge"] - reexported == set()


def anchors(page):
    """Return the anchors of a page's headings; a repeated heading gets a number."""
    counts, found = Counter[str](), set[str]()
    for heading in re.findall(r"^##+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_and_links_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    scripts = re.findall(r"(examples/[\w/]+\.\w+)", text)
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"
