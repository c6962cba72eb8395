"""The code of the README fits its page, its tables contain no code, and its quickstarts run."""

import re
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from support.docs.pages import README, sections

TEXT = README.read_text(encoding="utf-8")
QUICKSTARTS = {section.heading: section for section in sections(README) if "Quickstart" in section.heading}
QUICKSTART_PACKAGES = {
    "Quickstart: JAX": {"jax", "optax", "plateau_jax"},
    "Quickstart: PyTorch": {"plateau_jax", "torch", "torch_bridge"},
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


@pytest.mark.parametrize("heading", QUICKSTART_PACKAGES)
def test_quickstart_imports_one_framework(heading: str) -> None:
    program = QUICKSTARTS[heading].python()
    assert len(program.splitlines()) <= 17
    assert set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)) == QUICKSTART_PACKAGES[heading]


@pytest.mark.parametrize("heading", QUICKSTART_PACKAGES)
def test_quickstart_prints_falling_loss_and_learning_rate(heading, capsys) -> None:
    exec(compile(QUICKSTARTS[heading].python(), heading, "exec"), {})
    printed = re.findall(r"loss (\S+), lr (\S+)", capsys.readouterr().out)
    losses, lrs = ([float(text) for text in texts] for texts in zip(*printed, strict=True))
    assert len(losses) > 3
    assert losses[0] > losses[1] > losses[2] > 10 * losses[-1]
    assert lrs[0] == lrs[1] == 0.01 > lrs[-1]


def test_readme_of_tests_names_existing_modules() -> None:
    text = (README.parent / "tests" / "README.md").read_text(encoding="utf-8")
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    modules = {path.stem for path in (README.parent / "tests" / "support").rglob("*.py")}
    assert len(named) > 20
    assert named <= modules
