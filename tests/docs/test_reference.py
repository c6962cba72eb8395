"""The public names, their reference, and the page of the command line."""

import doctest
import re
from typing import get_type_hints

from docs.public_names import PUBLIC_NAMES, methods_of
from support.docs.pages import ROOT

from docs.reference import listed, pages
from plateau_jax.tools.command_line.option_parser import command_line_parser


def test_reference_is_written_from_the_docstrings():
    """`python -m docs.reference` writes it. A new signature needs a line in CHANGELOG."""
    for path, text in pages():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_names_in_headings_are_code():
    """Markdown would take the underscores of a plain `__call__` for bold."""
    for _, text in pages():
        headings = re.findall(r"^##+ (.+)", text, re.MULTILINE)
        assert [heading for heading in headings if heading[0] != "`"] in ([], ["Types"])


def test_index_lists_every_public_name():
    names = [f"{package}.{name}" for package, _, names in listed() for name in names]
    assert sorted(names) == sorted(PUBLIC_NAMES)


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
