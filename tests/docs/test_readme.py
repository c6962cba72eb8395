"""The README can be read in two minutes: its size, its tables, its quickstarts. So can that of the tests."""

import re
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt
from support.docs.pages import README, sections

TEXT = README.read_text(encoding="utf-8")
QUICKSTARTS = {section.heading: section for section in sections(README) if "Quickstart" in section.heading}
ITS_PACKAGES = {
    "Quickstart: JAX": {"jax", "optax", "plateau_jax"},
    "Quickstart: PyTorch": {"torch", "torch_bridge"},
}


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 110
    assert len(TEXT.split()) <= 900


def test_no_table_cell_holds_code() -> None:
    tokens = MarkdownIt().enable("table").parse(TEXT)
    cells = [
        following.content for token, following in pairwise(tokens) if token.type in ("th_open", "td_open")
    ]
    assert cells
    assert not [cell for cell in cells if "`" in cell]


@pytest.mark.parametrize("heading", ITS_PACKAGES)
def test_a_quickstart_is_short_and_imports_one_framework(heading: str) -> None:
    program = QUICKSTARTS[heading].python()
    assert len(program.splitlines()) <= 12
    assert set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)) == ITS_PACKAGES[heading]


@pytest.mark.parametrize("heading", ITS_PACKAGES)
def test_a_quickstart_prints_falling_losses_and_the_rate(heading, capsys) -> None:
    exec(compile(QUICKSTARTS[heading].python(), heading, "exec"), {})
    printed = re.findall(r"loss (\S+), rate (\S+)", capsys.readouterr().out)
    losses, rates = ([float(text) for text in texts] for texts in zip(*printed, strict=True))
    assert len(losses) > 3
    assert losses[0] > losses[1] > losses[2] > 10 * losses[-1]
    assert rates[0] == rates[1] == 0.01 > rates[-1]


def test_the_readme_of_the_tests_names_modules_that_exist() -> None:
    text = (README.parent / "tests" / "README.md").read_text(encoding="utf-8")
    used = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in used for name in re.findall(r"`([a-z_]+)`", cell)}
    modules = {path.stem for path in (README.parent / "tests" / "support").rglob("*.py")}
    assert len(named) > 20
    assert named <= modules
