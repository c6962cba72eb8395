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

NAMES: dict[str, Any] = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (plateau_jax, torch_bridge)
    for name in package.__all__
    # `torch_bridge` re-exports the curves of `plateau_jax`.
    if getattr(package, name).__module__.startswith(f"{package.__name__}.")
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with the command of CONTRIBUTING."""
    folder = tmp_path_factory.mktemp("build") / "site"
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python (-m sphinx .*) build/site$", text, re.MULTILINE)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, *shlex.split(command), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, BeautifulSoup]:
    """The pages, by their paths in the site."""
    pages: dict[str, BeautifulSoup] = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" not in path.parts:
            page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
            pages[path.relative_to(site).as_posix()] = page
    return pages


@pytest.fixture(scope="module")
def reference(html: dict[str, BeautifulSoup]) -> dict[str, BeautifulSoup]:
    """The description of each name and member in the reference, without those of its members."""
    result: dict[str, BeautifulSoup] = {}
    for file, page in html.items():
        for heading in page.select("dl.py > dt.sig[id]") if file.startswith("reference/") else ():
            description = BeautifulSoup(str(heading.find_next_sibling("dd")), "html.parser")
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
        tab.goto(f"{(site / 'search.html').as_uri()}?q={quote(query)}")
        tab.locator(".search-summary:not(:empty)").wait_for()
        return [
            str(link.get_attribute("href")) for link in tab.locator("#search-results li > a").all()
        ]

    return links


def test_first_page_has_install_and_the_first_program(html: dict[str, BeautifulSoup]) -> None:
    shown = html["index.html"].select_one("article").get_text()
    for section in sections(README):
        if section.heading in ("", "Install"):
            assert all(block.code in shown for block in section.blocks), section.heading


def test_links_resolve_within_the_site(site: Path, html: dict[str, BeautifulSoup]) -> None:
    """And external links have the right form; pages load nothing from other sites."""
    anchors = {file: {str(tag["id"]) for tag in page.select("[id]")} for file, page in html.items()}
    wrong: list[str] = []
    for file, page in html.items():
        loaded = page.select("[src], link[href]:not([rel=canonical])")
        for tag in page.select("[href], [src]"):
            target = str(tag.get("href") or tag.get("src"))
            address = urlsplit(target)
            if address.scheme or address.netloc:
                is_right = address.scheme in ("data", "mailto") or (
                    address.scheme == "https"
                    and re.fullmatch(r"[\w.-]+\.[a-z]+", address.netloc)
                    and tag not in loaded
                )
            else:
                path = (site / file).parent / unquote(address.path) if address.path else site / file
                target_file = (
                    path.resolve().relative_to(site.resolve()).as_posix() if path.exists() else ""
                )
                known = anchors.get(target_file, set[str]())
                is_right = target_file and (
                    not address.fragment or unquote(address.fragment) in known
                )
            if not is_right:
                wrong.append(f"{file}: {target}")
    assert not wrong, "\n".join(wrong)


def test_every_public_name_is_in_the_reference(reference: dict[str, BeautifulSoup]) -> None:
    assert {name for name in reference if name.count(".") == 1} == NAMES.keys()


def test_reference_contains_no_unrendered_markup(reference: dict[str, BeautifulSoup]) -> None:
    """Finds lists shown as text, unrecognized sections, and stray stars or quotes."""
    left = list[str]()
    for name, body in reference.items():
        shown = BeautifulSoup(str(body), "html.parser")
        # Remove examples, inline code and section titles, but not equations.
        for tag in shown.select(
            ".doctest, .highlight-python, .highlight-default, code, dt, .rubric"
        ):
            tag.decompose()
        # Allow the stars of a parameter, such as **settings.
        wrong = re.compile(r"`|\*(?!\*?\w+( |$))|^ *- |^ *>|::|^[A-Z]\w+:$")
        left += [f"{name}: {line}" for line in shown.get_text().splitlines() if wrong.search(line)]
    assert not left, "\n".join(left)


def test_only_code_scrolls_sideways_on_a_phone(
    site: Path, html: dict[str, BeautifulSoup], phone: Page
) -> None:
    """A code block may scroll; everything else must end before the right edge."""
    beyond = """edge => [...document.querySelectorAll(".content *, header *")]
        .filter(part => !part.closest("pre") || part.tagName === "PRE")
        .filter(part => part.getBoundingClientRect().right > edge)
        .map(part => part.tagName + ": " + part.textContent.trim().slice(0, 40))"""
    wide = list[str]()
    for file in html:
        phone.goto((site / file).as_uri())
        wide += [f"{file}: {part}" for part in phone.evaluate(beyond, PHONE_WIDTH)]
    assert not wide, "\n".join(wide)


def test_button_copies_code_without_prompts(site: Path, phone: Page) -> None:
    copy = """button => new Promise(resolve => {
        const copied = () => resolve(document.activeElement.value);
        document.addEventListener("copy", copied, {once: true});
        button.click();
    })"""
    phone.goto((site / "reference" / "jax.html").as_uri())
    button = phone.locator("#stack .doctest .copybtn")
    button.wait_for(state="attached")
    copied = button.evaluate(copy)
    shown = phone.locator("#stack .doctest pre").text_content() or ""
    sources = [example.source for example in doctest.DocTestParser().get_examples(shown)]
    assert copied.replace("\n", "") == "".join(sources).replace("\n", "") != ""


def test_public_names_have_runnable_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    missing = [
        name
        for name, value in NAMES.items()
        if not any(test.examples for test in finder.find(value, name))
    ]
    assert missing == []


def test_type_hints_resolve_at_run_time() -> None:
    """Tools such as jsonargparse and tyro build objects from them."""
    for value in NAMES.values():
        get_type_hints(value)
        for member in vars(value).values() if isinstance(value, type) else ():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                get_type_hints(function)


# What people type, and how the path of a right page begins, or how the anchor of a right section
# does.
QUERIES = [
    ("Deprecation warning from SequentialLR", "#the-epoch-parameter"),
    (
        'DCP fails to save "initial_lr" field, created by an LR scheduler',
        "#keyerror-param-initial-lr",
    ),
    ("Scheduler Not Pickleable", "#attributeerror-can-t-pickle"),
    ("Learning Rate Scheduler Stepping too fast on MultiGPU", "#the-learning-rate-decays-n-times"),
    ("Extracting learning rate from optimizer state directly", "#how-do-i-read-or-log-the-current"),
    ("Add WSDS (Warmup-Stable-Decay-Simplified) Scheduler", "trainer_schedules", "cooldowns"),
    ("allow specifying LR schedule in terms of tokens", "clocks", "reference/clocks"),
    ("Tried to step 1002 times", "#valueerror-tried-to-step"),
    ("extend cosine schedule", "#how-do-i-extend-a-cosine-schedule"),
    ("Keras learning rate schedule", "#keras-3"),
    ("find_batch_size", "reference/around"),
    ("get_cosine_schedule_with_warmup", "other_schedulers"),
]


@pytest.mark.parametrize("query", QUERIES, ids=[query for query, *_ in QUERIES])
def test_right_page_is_among_the_first_three(
    query: tuple[str, ...], search: Callable[[str], list[str]]
) -> None:
    words, *right = query
    first = search(words)[:3]
    found = [part for link in first for part in (link, link[link.find("#") :])]
    assert any(part.startswith(begin) for part in found for begin in right), first


def test_small_words_of_a_name_do_not_count(search: Callable[[str], list[str]]) -> None:
    assert not any("with-your-own" in link for link in search("get_cosine_schedule_with_warmup"))


def test_unknown_words_find_nothing(search: Callable[[str], list[str]]) -> None:
    assert search("xyzzy plugh") == []
