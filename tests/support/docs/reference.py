"""The chapters of the API reference: Markdown from the docstrings, for GitHub and the site.

`python -m support.docs.reference`, in `tests/`, writes them. `docs/reference/index.md` lists the
names of each chapter; what stands above the first name of a chapter is written by hand.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import griffe
from griffe2md import (  # pyright: ignore[reportMissingTypeStubs]  # it marks no types
    ConfigDict,
    default_config,
    render_object_docs,
)
from support.docs.pages import REFERENCE, ROOT

CURVES = ("PlateauCurve", "StagedCurve")
"""Their entries leave out the methods that `Curve` describes."""


def listed() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the package, the path and the names of each chapter, as the index lists them."""
    index = (REFERENCE / "index.md").read_text(encoding="utf-8")
    for part in index.split("\n## ")[1:]:
        package, _, items = part.partition("\n")
        for file, names in re.findall(r"^- \[[^]]+\]\((\w+\.md)\): (.+)$", items, re.MULTILINE):
            yield package, REFERENCE / file, re.findall(r"\[(\w+)\]", names)


def chapters() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each chapter."""
    loader = griffe.GriffeLoader(
        docstring_parser="google",
        docstring_options={"returns_multiple_items": False},
        search_paths=[ROOT],
    )
    packages = {name: loader.load(name) for name in ("plateau_jax", "torch_bridge")}
    loader.resolve_aliases(implicit=False, external=False)
    for package in packages.values():
        _indent_items(package)
    for package, path, names in listed():
        text, *_ = path.read_text(encoding="utf-8").partition("\n## ")
        for name in names:
            text = f"{text.rstrip()}\n\n{_entry(packages[package][name])}"
        yield path, text


def _indent_items(parent: griffe.Object | griffe.Alias) -> None:
    # The descriptions of arguments and errors are items of lists, also from the second line on.
    for member in parent.members.values():
        if not isinstance(member, griffe.Object):
            continue
        for section in member.docstring.parsed if member.docstring else ():
            items: object = section.value
            if isinstance(items, list):
                for item in cast(list[object], items):
                    if isinstance(item, griffe.DocstringElement):
                        item.description = item.description.replace("\n", "\n  ")
        _indent_items(member)


def _entry(value: griffe.Object | griffe.Alias) -> str:
    described: list[str] = []
    for section in value.docstring.parsed if value.docstring else ():
        if isinstance(section, griffe.DocstringSectionAttributes):
            described = [f"!^{attribute.name}$" for attribute in section.value]
    options: ConfigDict = {
        **default_config,
        "filters": [r"!^_(?!_call__$)", *described],
        "inherited_members": value.name not in CURVES,
        "line_length": 88,
        "members_order": "source",
        "show_bases": False,
        "show_if_no_docstring": False,
        "summary": False,
    }
    # An alias, of a name that a package imports, has all that is read of an object.
    text = render_object_docs(cast(griffe.Object, value), options)
    text = re.sub(r"^(#+ )`\w+\.(.+)`$", r"\1\2", text, flags=re.MULTILINE)
    # The types link to headings that no page has.
    text = re.sub(r"\[([^][]*)\]\(#[^)]*\)", r"\1", text)
    text = re.sub(r"</?code>", "`", text)
    text = re.sub(r"^- \*\*(\*+)", r"- **\\\1", text, flags=re.MULTILINE)
    text = re.sub(r"^>>> .*\n(?:.+\n)*", r"```pycon\n\g<0>```\n", text, flags=re.MULTILINE)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    for path, text in chapters():
        path.write_text(text, encoding="utf-8")
