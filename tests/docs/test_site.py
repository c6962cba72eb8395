"""The built site: its links, its reference, its search, and its width on a phone.

Queries are messages, names, and titles of public issues of other projects.
"""

import doctest
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import quote, unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Page
from support.design.page import chromium
from support.docs.pages import README, ROOT, sections

import plateau_jax
import torch_bridge

pytestmark = pytest.mark.slow

PHONE_WIDTH = 390
"""In pixels."""


def public_names() -> dict[str, Any]:
    """Return all public names; the curves that `torch_bridge` re-exports have one name here."""
    names: dict[str, Any] = {}
    for package in (plateau_jax, torch_bridge):
        for name in package.__all__:
            value = getattr(package, name)
            if value.__module__.startswith(f"{package.__name__}."):
                names[f"{package.__name__}.{name}"] = value
    return names


NAMES = public_names()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with the command of CONTRIBUTING."""
    folder = tmp_path_factory.mktemp("build") / "site"
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python (-m sphinx .*) build/site$", text, re.MULTILINE)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *shlex.split(command), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, BeautifulSoup]:
    """The pages, by their paths in the site."""
    pages: dict[str, BeautifulSoup] = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(site).as_posix()
        pages[name] = BeautifulSoup(text, "html.parser")
    return pages


@pytest.fixture(scope="module")
def anchors(html: dict[str, BeautifulSoup]) -> dict[str, set[str]]:
    """The anchors of each page."""
    ids: dict[str, set[str]] = {}
    for file, page in html.items():
        ids[file] = {str(tag["id"]) for tag in page.select("[id]")}
    return ids


@pytest.fixture(scope="module")
def reference(html: dict[str, BeautifulSoup]) -> dict[str, BeautifulSoup]:
    """The description of each name and member in the reference, without those of its members."""
    result: dict[str, BeautifulSoup] = {}
    for file, page in html.items():
        if not file.startswith("reference/"):
            continue
        for heading in page.select("dl.py > dt.sig[id]"):
            element = heading.find_next_sibling("dd")
            description = BeautifulSoup(str(element), "html.parser")
            for member in description.select("dd dl.py"):
                member.decompose()
            result[str(heading["id"])] = description
    return result


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def phone(browser: Any) -> Page:
    return browser.new_page(viewport={"width": PHONE_WIDTH, "height": 844})


@pytest.fixture(scope="module")
def search(site: Path, browser: Any) -> Callable[[str], list[str]]:
    """A function that returns the links of the results, from the first."""
    tab = browser.new_page()

    def links(query: str) -> list[str]:
        address = (site / "search.html").as_uri()
        tab.goto(f"{address}?q={quote(query)}")
        tab.locator(".search-summary:not(:empty)").wait_for()
        results = tab.locator("#search-results li > a").all()
        return [str(link.get_attribute("href")) for link in results]

    return links


def test_first_page_has_install_and_the_first_program(html: dict[str, BeautifulSoup]) -> None:
    article = html["index.html"].select_one("article")
    shown = article.get_text()
    for section in sections(README):
        if section.heading not in ("", "Install"):
            continue
        for block in section.blocks:
            assert block.code in shown, section.heading


def is_right_external_link(target: str) -> bool:
    address = urlsplit(target)
    if address.scheme in ("data", "mailto"):
        return True
    is_host = re.fullmatch(r"[\w.-]+\.[a-z]+", address.netloc)
    return address.scheme == "https" and is_host is not None


def is_right_link(site: Path, anchors: dict[str, set[str]], file: str, target: str) -> bool:
    """Return whether a link of a file leads to a file of the site, and to an anchor in it."""
    address = urlsplit(target)
    path = site / file
    if address.path:
        path = path.parent / unquote(address.path)
    path = path.resolve()
    if not path.exists() or not path.is_relative_to(site.resolve()):
        return False
    if not address.fragment:
        return True
    page = path.relative_to(site.resolve()).as_posix()
    return unquote(address.fragment) in anchors.get(page, set())


def target_of(tag: Any) -> str:
    """Return the address of a link, a picture or a script."""
    return str(tag.get("href") or tag.get("src"))


def test_links_resolve_within_the_site(
    site: Path, html: dict[str, BeautifulSoup], anchors: dict[str, set[str]]
) -> None:
    """And external links have the right form."""
    wrong: list[str] = []
    for file, page in html.items():
        targets = {target_of(tag) for tag in page.select("[href], [src]")}
        for target in targets:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                is_right = is_right_external_link(target)
            else:
                is_right = is_right_link(site, anchors, file, target)
            if not is_right:
                wrong.append(f"{file}: {target}")
    assert not wrong, "\n".join(wrong)


def test_every_public_name_is_in_the_reference(reference: dict[str, BeautifulSoup]) -> None:
    names = {name for name in reference if name.count(".") == 1}
    assert names == NAMES.keys()


NOT_PROSE = ".doctest, .highlight-python, .highlight-default, code, dt, .rubric"
"""The elements with examples, inline code and section titles; equations are left."""

UNRENDERED = re.compile(r"`|\*(?!\*?\w+( |$))|^ *- |^ *>|::|^[A-Z]\w+:$")
"""Lists shown as text, unrecognized sections, and stray stars or quotes.

The stars of a parameter, such as `**settings`, are right.
"""


def test_reference_contains_no_unrendered_markup(reference: dict[str, BeautifulSoup]) -> None:
    wrong: list[str] = []
    for name, body in reference.items():
        shown = BeautifulSoup(str(body), "html.parser")
        for tag in shown.select(NOT_PROSE):
            tag.decompose()
        wrong.extend(
            f"{name}: {line}" for line in shown.get_text().splitlines() if UNRENDERED.search(line)
        )
    assert not wrong, "\n".join(wrong)


BEYOND_THE_EDGE = """edge => [...document.querySelectorAll(".content *, header *")]
    .filter(part => !part.closest("pre") || part.tagName === "PRE")
    .filter(part => part.getBoundingClientRect().right > edge)
    .map(part => part.tagName + ": " + part.textContent.trim().slice(0, 40))"""


def test_only_code_scrolls_sideways_on_a_phone(
    site: Path, html: dict[str, BeautifulSoup], phone: Page
) -> None:
    """A code block may scroll; everything else must end before the right edge."""
    wide: list[str] = []
    for file in html:
        phone.goto((site / file).as_uri())
        wide.extend(f"{file}: {part}" for part in phone.evaluate(BEYOND_THE_EDGE, PHONE_WIDTH))
    assert not wide, "\n".join(wide)


def test_public_names_have_runnable_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    for name, value in NAMES.items():
        runnable = [test for test in finder.find(value, name) if test.examples]
        assert runnable, name


def methods_of(value: Any) -> list[Any]:
    """Return the functions of a class, those of its class methods and static methods too."""
    methods: list[Any] = []
    if isinstance(value, type):
        for member in vars(value).values():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                methods.append(function)
    return methods


def test_type_hints_resolve_at_run_time() -> None:
    """Tools such as jsonargparse and tyro build objects from them."""
    for value in NAMES.values():
        get_type_hints(value)
        for method in methods_of(value):
            get_type_hints(method)


PAGES_FOR = {
    "Add WSDS (Warmup-Stable-Decay-Simplified) Scheduler": (
        "other_schedulers",
        "longer_and_shorter",
    ),
    "allow specifying LR schedule in terms of tokens": ("clocks", "reference/clocks"),
    "get_cosine_schedule_with_warmup": ("other_schedulers",),
}
"""What people type, and how the paths of the right pages begin."""

ANCHORS_FOR = {
    "Deprecation warning from SequentialLR": "#the-epoch-parameter",
    'DCP fails to save "initial_lr" field, created by an LR scheduler': (
        "#keyerror-param-initial-lr"
    ),
    "Scheduler Not Pickleable": "#attributeerror-can-t-pickle",
    "Learning Rate Scheduler Stepping too fast on MultiGPU": "#the-learning-rate-decays-n-times",
    "Extracting learning rate from optimizer state directly": "#how-do-i-read-or-log-the-current",
    "Tried to step 1002 times": "#valueerror-tried-to-step",
    "extend cosine schedule": "#how-do-i-extend-a-cosine-schedule",
    "Keras learning rate schedule": "#keras-3",
}
"""What people type, and how the anchor of the right section begins."""


@pytest.mark.parametrize("query", PAGES_FOR)
def test_right_page_is_among_the_first_three(
    query: str, search: Callable[[str], list[str]]
) -> None:
    first_three = search(query)[:3]
    assert any(link.startswith(PAGES_FOR[query]) for link in first_three), first_three


@pytest.mark.parametrize("query", ANCHORS_FOR)
def test_right_section_is_among_the_first_three(
    query: str, search: Callable[[str], list[str]]
) -> None:
    first_three = search(query)[:3]
    assert any(ANCHORS_FOR[query] in link for link in first_three), first_three
