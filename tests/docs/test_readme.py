"""The code of the README fits its page and prints what it shows; the tutorial's programs train."""

import re
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from support.docs.pages import README, ROOT, sections

TEXT = README.read_text(encoding="utf-8")
TRAINING = {
    section.heading: section.python()
    for section in sections(ROOT / "docs" / "tutorial.md")
    if section.heading.startswith("Train in")
}


def test_code_fits_the_width_of_a_repository_page() -> None:
    """Wider lines would scroll sideways."""
    lines = [
        line for section in sections(README) for block in section.blocks for line in block.code.splitlines()
    ]
    assert lines
    assert not [line for line in lines if len(line) > 84]


def test_table_cells_contain_no_code() -> None:
    tokens = MarkdownIt().enable("table").parse(TEXT)
    cells = [
        following.content for token, following in pairwise(tokens) if token.type in ("th_open", "td_open")
    ]
    assert cells
    assert not [cell for cell in cells if "`" in cell]


def test_readme_prints_what_it_shows(capsys) -> None:
    introduction, *rest = sections(README)
    shown = "".join(block.code for block in introduction.blocks if block.language == "text")
    exec(introduction.python() + "".join(section.python() for section in rest), {})
    assert capsys.readouterr().out == shown + "True\n"


@pytest.mark.parametrize(
    ("heading", "packages"),
    [("Train in JAX", {"jax", "optax"}), ("Train in PyTorch", {"torch", "torch_bridge"})],
)
def test_tutorial_trains_in_one_framework(heading, packages, capsys) -> None:
    program = TRAINING[heading]
    assert set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)) == packages | {"plateau_jax"}
    exec(program, {})
    printed = re.findall(r"loss (\S+), lr (\S+)", capsys.readouterr().out)
    losses, lrs = ([float(text) for text in texts] for texts in zip(*printed, strict=True))
    assert len(losses) > 3
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 10 * losses[-1]
    assert lrs[0] == lrs[1] == 0.01 > lrs[-1]


def test_readme_of_tests_names_existing_modules() -> None:
    text = (README.parent / "tests" / "README.md").read_text(encoding="utf-8")
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    modules = {path.stem for path in (README.parent / "tests" / "support").rglob("*.py")}
    assert len(named) > 20
    assert named <= modules
