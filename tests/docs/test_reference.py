"""The public names, and the reference as GitHub shows it: signatures, summaries, all options."""

import doctest
import inspect
import re
import textwrap
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
from docs.public_names import PUBLIC_NAMES, methods_of, public_signatures
from support.docs.pages import ROOT, sections

import plateau_jax
import torch_bridge
from plateau_jax.tools.command_line.option_parser import command_line_parser

REFERENCE = ROOT / "docs" / "reference"
PACKAGES: dict[str, ModuleType] = {"plateau_jax": plateau_jax, "torch_bridge": torch_bridge}
CHAPTERS = sorted(set(REFERENCE.glob("*.md")) - {REFERENCE / "index.md"})


def shown_signatures():
    """Return those of all chapters, with the summary that a method has below its signature.

    A method stands below its class, without its name.
    """
    summaries = {}
    owner = ""
    for chapter in CHAPTERS:
        for block in re.findall(r"(?:^    .*\n)+", chapter.read_text("utf-8"), re.MULTILINE):
            # An indented line that does not begin with a period continues the line above.
            unwrapped = re.sub(r"\n +(?! |\.)", " ", textwrap.dedent(block))
            for line in unwrapped.splitlines():
                signature, end, summary = line.partition(") ")
                if end:
                    signature += ")"
                if line.startswith("    ."):
                    signature = owner + signature.strip()
                else:
                    owner, _, _ = signature.partition("(")
                summaries[signature] = summary
    return {name: summary for name, summary in summaries.items() if "(" in name}


def test_chapters_show_every_signature():
    """A release must not change one by accident: if you mean it, add a line to CHANGELOG."""
    assert shown_signatures().keys() == public_signatures()


COMMON = (
    "state_dict",
    "load_state_dict",
    "get_lr",
    "get_last_lr",
    "to_dict",
    "from_dict",
)
"""Methods without a summary, because all such objects have them."""


def test_chapters_show_the_summary_of_every_method():
    for signature, summary in shown_signatures().items():
        name, _, _ = signature.partition("(")
        if name.count(".") == 2 and name.rpartition(".")[2] not in COMMON:
            first_line, *_ = (inspect.getdoc(object_named(name)) or "").splitlines()
            assert summary == first_line, name


def described_names(chapter):
    """Return the names that a chapter describes, each with the link above its description."""
    text = chapter.read_text(encoding="utf-8")
    pattern = r" \[Docstring\]\((\S+)\)\n\n    ([\w.]+)"
    links_and_names = re.findall(pattern, text)
    return {name: link for link, name in links_and_names}


def object_named(full_name):
    package, _, name = full_name.partition(".")
    return attrgetter(name)(PACKAGES[package])


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_chapters_link_to_docstrings(chapter):
    names = described_names(chapter)
    headings = [section.heading for section in sections(chapter)[1:]]
    assert [name.partition(".")[2] for name in names] == headings
    for name, link in names.items():
        file = Path(inspect.getfile(object_named(name)))
        assert (REFERENCE / link).resolve() == file, name


def test_public_names_have_runnable_examples():
    finder = doctest.DocTestFinder(recurse=False)
    for name, value in PUBLIC_NAMES.items():
        runnable = [test for test in finder.find(value, name) if test.examples]
        assert runnable, name


def test_type_hints_resolve_at_run_time():
    """Tools such as jsonargparse and tyro build objects from them."""
    for value in PUBLIC_NAMES.values():
        get_type_hints(value)
        if isinstance(value, type):
            get_type_hints(value.__init__)
        for method in methods_of(value):
            get_type_hints(getattr(value, method))


def test_page_of_the_command_line_lists_every_option():
    usage = command_line_parser().format_usage()
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `(--[\w-]+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(re.findall(r"--[\w-]+", usage)))
