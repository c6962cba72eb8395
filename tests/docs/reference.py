"""The API reference: Markdown from the docstrings, for GitHub and the site.

`python -m docs.reference`, in `tests/`, writes it. `docs/reference/index.md` lists the names of
each chapter; after each it has the first line of the docstring, and the methods. The guides that a
chapter begins with are written by hand, and so is the list of types in the index.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import griffe
from griffe2md import (  # pyright: ignore[reportMissingTypeStubs]  # it marks no types
    ConfigDict,
    default_config,
    render_object_docs,
)
from support.docs.pages import REFERENCE, ROOT

INDEX = REFERENCE / "index.md"

CURVES = ("PlateauCurve", "StagedCurve")
"""Their entries leave out the methods that `Curve` describes."""


def listed() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the package, the path and the names of each chapter, as the index lists them."""
    for part in INDEX.read_text(encoding="utf-8").split("\n## ")[1:]:
        package, _, items = part.partition("\n")
        for file, names in re.findall(r"^- \[.+\]\((\w+\.md)\)\n((?: +- .+\n)+)", items, re.M):
            yield package.strip("`"), REFERENCE / file, re.findall(r"^  - \[`(\w+)`\]", names, re.M)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each page: the chapters, then the index."""
    loader = griffe.GriffeLoader(
        docstring_parser="google",
        docstring_options={"returns_multiple_items": False},
        search_paths=[ROOT],
    )
    packages = {name: loader.load(name) for name in ("plateau_jax", "torch_bridge")}
    loader.resolve_aliases(implicit=False, external=False)
    for package in packages.values():
        _indent_items(package)
    index = INDEX.read_text(encoding="utf-8")
    links = _Links(loader.modules_collection, _targets_of_types(index))
    entries: dict[tuple[str, str], str] = {}
    for package, path, names in listed():
        for name in names:
            value = packages[package][name]
            entries[package, name], headings = _entry(value)
            for heading in headings:
                links.targets[f"{package}.{heading}"] = _target(path, heading)
            assert value.docstring is not None
            index = _with_item(index, path, headings, value.docstring.lines[0])
    for package, path, names in listed():
        text, *_ = path.read_text(encoding="utf-8").partition("\n## ")
        text = re.sub(r".*(?=Guides: )", f"In `{package}` ([all names](index.md)). ", text, count=1)
        for name in names:
            text = f"{text.rstrip()}\n\n{links.link_entry(entries[package, name], package, name)}"
        yield path, text
    yield INDEX, index


def _target(path: Path, heading: str) -> str:
    return f"{path.name}#{heading.lower().replace('.', '')}"


def _with_item(index: str, path: Path, headings: list[str], summary: str) -> str:
    """Return the index with the first line of a docstring, and links to the methods below it."""
    link, *methods = [
        f"[`{heading.rpartition('.')[2]}`]({_target(path, heading)})" for heading in headings
    ]
    item = f"  - {link} – {summary}\n"
    if methods:
        item += f"    - Methods: {', '.join(methods)}\n"
    pattern = rf"^  - {re.escape(link)}.*\n(?:    - .*\n)?"
    return re.sub(pattern, lambda _: item, index, flags=re.MULTILINE)


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


@dataclass(frozen=True)
class _Links:
    """The links of an entry, to other entries or to the list of types in the index."""

    modules: griffe.ModulesCollection
    targets: dict[str, str]
    """The target for the full name of each entry and method, and for each type in the index."""

    def link_entry(self, entry: str, package: str, name: str) -> str:
        """Return an entry with links from its types, and from names outside of their own entry."""

        def link_type(match: re.Match[str]) -> str:
            type_name, path = match.groups()
            if path == "typing.Self":
                type_name = name
            return self._type_link(type_name, path, package)

        def link_types(match: re.Match[str]) -> str:
            return _as_code(re.sub(r"\[(\w+)\]\(#([\w.]+)\)", link_type, match[1]))

        def link_name(match: re.Match[str]) -> str:
            target = self._target(match[1], package)
            if target is None or match[1].split(".")[0] == name:
                return match[0]
            return f"[{match[0]}]({target})"

        text = re.sub(r"<code>(.+?)</code>", link_types, entry)
        return re.sub(r"(?<!\[)`([\w.]+)`(?!\])", link_name, text)

    def _target(self, name: str, package: str) -> str | None:
        # Both packages have a `multiplier`.
        for prefix in ("", f"{package}.", "plateau_jax.", "torch_bridge."):
            if prefix + name in self.targets:
                return self.targets[prefix + name]
        return None

    def _type_link(self, name: str, path: str, package: str) -> str:
        """Return a type as a link; an alias of ours without a target as what it stands for."""
        target = self._target(name, package)
        if target:
            return f"[{name}]({target})"
        top, *_ = path.split(".")
        if top not in self.modules.members:
            return name
        text = ""
        # Fails for a class, which has no value: it belongs in the list of the index.
        for part in self.modules[path].value.iterate(flat=True):
            if isinstance(part, griffe.ExprName):
                part = self._type_link(part.name, part.canonical_path, package)
            text += part.replace("'", '"')
        return text


def _targets_of_types(index: str) -> dict[str, str]:
    _, _, types = index.partition("\n## Types\n")
    targets: dict[str, str] = {}
    for names in re.findall(r"^- (.+?) –", types, re.M):
        targets |= dict.fromkeys(re.findall(r"`(\w+)`", names), f"{INDEX.name}#types")
    return targets


def _entry(value: griffe.Object | griffe.Alias) -> tuple[str, list[str]]:
    """Return the Markdown of a name, without links to other entries, and the names in headings."""
    attributes = _list_attributes(value) if value.is_class else []
    options: ConfigDict = {
        **default_config,
        "filters": [r"!^_(?!_call__$)", *(f"!^{attribute}$" for attribute in attributes)],
        "inherited_members": value.name not in CURVES,
        "line_length": 88,
        "members_order": "source",
        "show_bases": False,
        "show_if_no_docstring": False,
        "summary": False,
    }
    headings: list[str] = []

    def with_kind(match: re.Match[str]) -> str:
        level, heading, arguments = match.groups()
        headings.append(heading)
        _, _, method = heading.partition(".")
        kind = ""
        if value.is_class and not method:
            kind = "class "
        elif method and "classmethod" in value.all_members[method].labels:
            kind = "classmethod "
        return f"{level} `{heading}`\n\n```python\n{kind}{heading}{arguments or ''}\n```"

    # An alias, of a name that a package imports, has all that is read of an object.
    text = render_object_docs(cast(griffe.Object, value), options)
    signature = r"\n\n```python\n\w+([^`]+)\n```"
    text = re.sub(rf"^(#+) `\w+\.(.+)`$(?:{signature})?", with_kind, text, flags=re.MULTILINE)
    # The attributes link to headings that no page has.
    text = re.sub(r"\[(\*\*\w+\*\*)\]\(#[^)]*\)", r"\1", text)
    text = re.sub(r"`docs/(\w+\.md)`", _page_link, text)
    # In bold, the stars of **options too.
    text = re.sub(r"^- \*\*(\*+)", lambda match: "- **" + r"\*" * len(match[1]), text, flags=re.M)
    text = re.sub(r"^>>> .*\n(?:.+\n)*", r"```pycon\n\g<0>```\n", text, flags=re.MULTILINE)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", headings


def _list_attributes(value: griffe.Object | griffe.Alias) -> list[str]:
    """List all attributes that have a docstring in one section; return the names in it."""
    assert value.docstring is not None
    sections = value.docstring.parsed
    for section in sections:
        if isinstance(section, griffe.DocstringSectionAttributes):
            break
    else:
        section = griffe.DocstringSectionAttributes([])
        # Below the arguments, or at the end.
        kinds = [other.kind for other in sections]
        place = len(kinds)
        if griffe.DocstringSectionKind.parameters in kinds:
            place = kinds.index(griffe.DocstringSectionKind.parameters) + 1
        sections.insert(place, section)
    members = value.members if value.name in CURVES else value.all_members
    listed_names = [attribute.name for attribute in section.value]
    for name, member in members.items():
        is_attribute = member.is_attribute and not name.startswith("_")
        if is_attribute and member.docstring and name not in listed_names:
            attribute = griffe.DocstringAttribute(name, description=member.docstring.value)
            attribute.annotation = cast(griffe.Attribute, member).annotation
            attribute.description = attribute.description.replace("\n", "\n  ")
            section.value.append(attribute)
            listed_names.append(name)
    if not listed_names:
        sections.remove(section)
    return listed_names


def _as_code(types: str) -> str:
    """Return types as code, which Markdown's own cannot be if it has links in it."""
    if "](" in types:
        one = re.fullmatch(r"\[(\w+)\](\(\S+\))", types)
        if one:
            return f"[`{one[1]}`]{one[2]}"
        return f"<code>{types}</code>"
    if types.startswith("("):  # the errors under one description
        return ", ".join(f"`{error}`" for error in types[1:-1].split(", "))
    return f"`{types}`"


def _page_link(match: re.Match[str]) -> str:
    """Return a link with the title of the page."""
    title, *_ = (ROOT / "docs" / match[1]).read_text(encoding="utf-8").splitlines()
    return f"[{title.removeprefix('# ')}](../{match[1]})"


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
