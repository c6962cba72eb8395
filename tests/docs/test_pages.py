"""Every section of the README and of `docs/` runs as a program, and every link resolves.

A section is everything under a second-level heading, or above the first one. Its Python blocks run
from top to bottom, as they stand, unless a comment at the top says that they continue the first
program of the page. A program that writes files runs a second time in the same folder.
`tests/trainers/` runs the programs that resume.

A comment after a `print`, at any depth, shows the line that it prints. An error is shown in the
same way: the `except` that catches it prints it, so nothing is printed if nothing is raised.
"""

import ast
import builtins
import itertools
import re
import runpy
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from support.checkpointing.checkpoints import Part
from support.docs import pages
from support.trees import assert_equal_trees
from torch.nn import Linear
from torch.nn.modules.module import register_module_forward_pre_hook

import plateau_jax
import torch_bridge
from torch_bridge import Checkpoints

IGNORED_WARNINGS = {
    "Read a checkpoint without this library": "ignore:torch.distributed is disabled:UserWarning",
}
"""Warnings that the page announces, by heading."""

ENDS_AT_ONCE_THE_SECOND_TIME = {"Save and resume", "A program for one or several GPUs"}
"""Headings of programs that, run again, find that their run is complete."""

MEASURES = {"Where the time goes"}
"""Headings of programs whose output is times."""

COMPARED_ELSEWHERE = {"Any framework: count samples, save and resume"}
"""Headings of programs that resume, and whose output another test compares with comments."""


def program_parameters():
    parameters = []
    for program in pages.programs():
        if program.resumes:
            continue
        marks = []
        if program.heading in IGNORED_WARNINGS:
            marks.append(pytest.mark.filterwarnings(IGNORED_WARNINGS[program.heading]))
        parameters.append(pytest.param(program, id=program.name, marks=marks))
    return parameters


def run_program(code, folder):
    """Run the code as `python program.py` does, but in this process."""
    file = folder / "program.py"
    file.write_text(code, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")


def run_commands(commands):
    """Run a shell block with this Python; return what it prints."""
    commands = re.sub(r"^python ", f"{sys.executable} ", commands, flags=re.MULTILINE)
    ended = subprocess.run(commands, shell=True, check=True, capture_output=True, encoding="utf-8")
    return ended.stdout


def assert_prints_what_it_shows(program, printed):
    """Check what a program printed, and what the commands of its section print.

    The output on the page has all lines, or only those that no comment in the code shows.
    """
    without_comments = pages.assert_printed(program.code, printed)
    if not program.shown:
        return
    of_commands = "".join(run_commands(commands) for commands in program.commands)
    all_lines = pages.without_losses(printed + of_commands)
    other_lines = pages.without_losses(without_comments + of_commands)
    assert pages.without_losses(program.shown) in (all_lines, other_lines)


@pytest.mark.slow
@pytest.mark.parametrize("program", program_parameters())
def test_sections_run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # programs save files here
    monkeypatch.setenv("PYTHONPATH", str(pages.ROOT))
    monkeypatch.setenv("PYTHONUTF8", "1")
    run_program(program.code, tmp_path)
    assert_prints_what_it_shows(program, capsys.readouterr().out)
    if list(tmp_path.iterdir()) != [tmp_path / "program.py"]:
        # It finds the files of its first run, and overwrites them or resumes.
        run_program(program.code, tmp_path)
        printed = capsys.readouterr().out
        if program.heading not in ENDS_AT_ONCE_THE_SECOND_TIME:
            assert_prints_what_it_shows(program, printed)


def test_programs_show_errors_by_printing_them():
    """`except ValueError as error: print(error)  # its message`, or the output below has it."""
    for program in pages.programs():
        comments = pages.shown_lines(program.code)
        for node in ast.walk(ast.parse(program.code)):
            if isinstance(node, ast.ExceptHandler) and node.name:
                (statement,) = node.body
                printed = ast.unparse(statement)
                assert printed in (f"print({node.name})", f"print(fill(str({node.name}), 88))")
                assert program.shown or statement.end_lineno in comments, program.name


def test_no_other_comment_promises_an_error():
    for block in pages.all_blocks():
        assert not re.search(r"# \w+(Error|Warning)\b", block.code)


def test_comments_show_output_only_where_it_is_compared():
    compared = set()
    for program in pages.programs():
        if not program.resumes or program.heading in COMPARED_ELSEWHERE:
            compared.update([*program.introduction, *program.blocks])
    for block in pages.all_blocks():
        if block.code not in compared:
            assert not re.search(r"print\(.*\)  # ", block.code)


# Complete code, and other code.

PAGE_WITH_PARTS = "Code that begins with an import is complete."
PAGE_WITH_FILES = "Code that begins with an import or a file name is complete."
PAGE_OF_PROGRAMS = "Each Python block is a complete program."


def code_blocks(page):
    blocks = []
    for section in pages.sections(page):
        blocks += [block for block in section.blocks if block.language in ("py", "python")]
    return blocks


PAGES_WITH_CODE = [page for page in pages.PAGES[1:] if code_blocks(page)]


def test_programs_that_print_show_it():
    """With its output below it, or with comments after its `print` calls."""
    for program in pages.programs():
        calls = re.findall(r"\bprint\(", program.code)
        comments = pages.shown_lines(program.code)
        if program.heading not in MEASURES:
            assert program.shown or len(calls) <= len(comments), program.name


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
def test_page_says_which_code_is_complete(page):
    blocks = code_blocks(page)
    parts = [block for block in blocks if not block.is_complete]
    for block in parts:
        assert block.code.startswith("# "), block.code
    if not parts:
        expected = PAGE_OF_PROGRAMS
    elif any(block.is_complete and block.code.startswith("# ") for block in blocks):
        expected = PAGE_WITH_FILES
    else:
        expected = PAGE_WITH_PARTS
    sentences = "".join(section.sentences for section in pages.sections(page))
    for sentence in (PAGE_OF_PROGRAMS, PAGE_WITH_FILES, PAGE_WITH_PARTS):
        assert sentences.count(sentence) == (sentence == expected)


def names_from_elsewhere(code):
    """Return the names that code uses, and neither defines anywhere nor gets from Python."""
    used = set()
    defined = {*dir(builtins), "__name__"}
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name):
                defined.add(name)
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.ExceptHandler(name=name):
                defined.add(name)
            case ast.arg(name):
                defined.add(name)
            case ast.alias(name, asname):
                defined.add(asname or name.partition(".")[0])
            case _:
                pass
    return used - defined


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
def test_complete_code_needs_no_other(page):
    for block in code_blocks(page):
        if block.is_complete and "exec(" not in block.code:  # nanochat's file runs its script
            assert names_from_elsewhere(block.code) == set(), block.code


@pytest.mark.slow
def test_tutorial_reaches_the_same_losses_in_both_frameworks(tmp_path, capsys):
    losses = {}
    for heading in ("Train in JAX", "Train in PyTorch"):
        run_program(pages.program_named(heading).code, tmp_path)
        printed = re.findall(r"loss (\S+),", capsys.readouterr().out)
        losses[heading] = np.array(printed, float)
    np.testing.assert_allclose(losses["Train in JAX"], losses["Train in PyTorch"], rtol=0.1)


@contextmanager
def ctrl_c_in_calls(numbers):
    """Send a Ctrl-C in these calls of a linear layer, counted from 1."""
    calls = itertools.count(1)

    def send(module, inputs):
        if isinstance(module, Linear) and next(calls) in numbers:
            signal.raise_signal(signal.SIGINT)

    with register_module_forward_pre_hook(send):
        yield


def final_states():
    """Return the states of the training step and of the loader in the last checkpoint."""
    step = Part()
    loader = Part()
    assert Checkpoints("run_interrupted").load(step=step, loader=loader) == 200
    return [step.state, loader.state]


@pytest.mark.slow
def test_run_saved_on_ctrl_c_trains_on_every_batch(tmp_path, monkeypatch, capsys):
    """Stopped twice in the middle of an update, it ends like an uninterrupted run."""
    code = pages.program_named("Save on Ctrl-C").code
    handler = signal.getsignal(signal.SIGINT)
    uninterrupted = tmp_path / "uninterrupted"
    uninterrupted.mkdir()
    monkeypatch.chdir(uninterrupted)
    run_program(code, uninterrupted)
    expected = final_states()
    assert capsys.readouterr().out == "saved after update 200\n"

    stopped = tmp_path / "stopped"
    stopped.mkdir()
    monkeypatch.chdir(stopped)
    with ctrl_c_in_calls({7, 37}):
        for update in (7, 37, 200):
            run_program(code, stopped)
            assert capsys.readouterr().out == f"saved after update {update}\n"
    assert_equal_trees(final_states(), expected)
    assert signal.getsignal(signal.SIGINT) is handler


def imported_names(package):
    """Return the names that a page imports from a package, and uses."""
    names = set()
    for page in pages.PAGES:
        code = "\n".join(section.python() for section in pages.sections(page))
        nodes = list(ast.walk(ast.parse(code)))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == package:
                imported = {alias.name for alias in node.names}
                names |= imported & used
    return names


def test_every_public_name_is_in_a_program():
    """`torch_bridge` reexports names of `plateau_jax`, but has its own `multiplier`."""
    reexported = set(plateau_jax.__all__) - {"multiplier"}
    own_names = set(torch_bridge.__all__) - reexported
    assert set(plateau_jax.__all__) - imported_names("plateau_jax") == set()
    assert own_names - imported_names("torch_bridge") == set()


def anchors(page):
    """Return the anchors of a page's headings; a repeated heading gets a number."""
    counts = Counter[str]()
    numbered = set()
    for heading in re.findall(r"^##+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        if counts[anchor]:
            numbered.add(f"{anchor}-{counts[anchor]}")
        else:
            numbered.add(anchor)
        counts[anchor] += 1
    return numbered


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_scripts_exist(page):
    for script in re.findall(r"(examples/[\w/]+\.\w+)", page.read_text(encoding="utf-8")):
        assert (pages.ROOT / script).exists(), script


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_links_resolve(page):
    """Those to files of the repository, and to headings of its pages."""
    links = r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)"
    for path, anchor in re.findall(links, page.read_text(encoding="utf-8")):
        target = page
        if path:
            target = page.parent / path
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"
