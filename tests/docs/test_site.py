"""The built site: its links, its search, its reference of every public name and its width on a phone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Page
from support.design.browser import chromium
from support.docs.pages import README, sections
from support.docs.reference import NAMES, PACKAGES
from support.docs.site import ROOT, build_site, descriptions, read_pages

pytestmark = pytest.mark.slow

PHONE_WIDTH = 390
"""In pixels."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "site"
    build_site(folder)
    return folder


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, BeautifulSoup]:
    return read_pages(site)


@pytest.fixture(scope="module")
def reference(html: dict[str, BeautifulSoup]) -> dict[str, Tag]:
    """The description of each name and member in the reference, in the order of its index."""
    listed = html["reference/index.html"].select("article section > ul > li > p > a")
    files = dict.fromkeys(str(link["href"]).partition("#")[0] for link in listed)
    return {name: body for file in files for name, body in descriptions(html[f"reference/{file}"]).items()}


@pytest.fixture(scope="module")
def phone() -> Iterator[Page]:
    """A browser tab as wide as a phone."""
    with chromium() as window:
        yield window.new_page(viewport={"width": PHONE_WIDTH, "height": 844})


def test_every_document_becomes_a_page(html: dict[str, BeautifulSoup]) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))]
    missing = {path.with_suffix(".html").as_posix() for path in documents} - html.keys()
    assert not missing, "\n".join(sorted(missing))
    titles = {file: page.select_one("title").get_text() for file, page in html.items()}
    assert titles["choosing_a_curve.html"].startswith("Choosing a curve")
    assert titles["changelog.html"].startswith("Changelog")


def test_first_page_has_install_and_the_first_program(html: dict[str, BeautifulSoup]) -> None:
    shown = html["index.html"].select_one("article").get_text()
    for section in sections(README):
        if section.heading in ("", "Install"):
            assert all(block.code in shown for block in section.blocks), section.heading


def test_links_resolve_within_the_site(site: Path, html: dict[str, BeautifulSoup]) -> None:
    """Checks only the form of external links."""
    anchors = {file: {str(tag["id"]) for tag in page.select("[id]")} for file, page in html.items()}
    wrong: list[str] = []
    for file, page in html.items():
        for tag in page.select("[href], [src]"):
            target = str(tag.get("href") or tag.get("src"))
            address = urlsplit(target)
            if address.scheme:
                is_right = address.scheme in ("data", "mailto") or (
                    address.scheme == "https" and re.fullmatch(r"[\w.-]+\.[a-z]+", address.netloc)
                )
            else:
                path = (site / file).parent / unquote(address.path) if address.path else site / file
                target_file = path.resolve().relative_to(site.resolve()).as_posix() if path.exists() else ""
                known = anchors.get(target_file, set[str]())
                is_right = target_file and (not address.fragment or unquote(address.fragment) in known)
            if not is_right:
                wrong.append(f"{file}: {target}")
    assert not wrong, "\n".join(wrong)


def test_pages_load_nothing_from_other_sites(html: dict[str, BeautifulSoup]) -> None:
    loaded = [
        f"{file}: {tag}"
        for file, page in html.items()
        for tag in page.select("[src], link[href]:not([rel=canonical])")
        if re.match(r"(https?:)?//", str(tag.get("src") or tag.get("href")))
    ]
    assert not loaded, "\n".join(loaded)


def test_search_index_has_every_page_and_name(site: Path, html: dict[str, BeautifulSoup]) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    assert {f"{name}.html" for name in index["docnames"]} == html.keys() - {"search.html"}
    known = {f"{prefix}.{entry[4]}" for prefix, members in index["objects"].items() for entry in members}
    assert NAMES.keys() <= known


def test_every_public_name_is_in_the_reference(reference: dict[str, Tag]) -> None:
    for package in PACKAGES:
        for name in package.__all__:
            full_name = f"{package.__name__}.{getattr(package, name).__name__}"
            if full_name not in NAMES:  # `torch_bridge` re-exports the curves of `plateau_jax`
                full_name = f"plateau_jax.{name}"
                assert getattr(package, name) is NAMES[full_name]
            assert full_name in reference, full_name
    assert {name for name in reference if name.count(".") == 1} == NAMES.keys()


def test_reference_contains_no_unrendered_markup(reference: dict[str, Tag]) -> None:
    """Finds lists shown as text, unrecognized sections, and stray stars or quotes."""
    left = list[str]()
    for name, body in reference.items():
        shown = BeautifulSoup(str(body), "html.parser")
        # Remove examples, inline code and section titles, but not equations.
        for tag in shown.select(".doctest, .highlight-python, .highlight-default, code, dt, .rubric"):
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


def test_code_has_a_button_that_copies_it(site: Path, phone: Page) -> None:
    copy = """button => new Promise(resolve => {
        document.addEventListener("copy", () => resolve(document.activeElement.value), {once: true});
        button.click();
    })"""
    phone.goto((site / "tutorial.html").as_uri())
    section = phone.locator("#define-a-curve")
    section.locator(".copybtn").first.wait_for(state="attached")
    code, output = (section.locator(f".highlight-{language} pre") for language in ("python", "text"))
    assert section.locator(".copybtn").count() == code.count() == output.count() == 1  # none for the output
    assert section.locator(".copybtn").evaluate(copy) == (code.text_content() or "").rstrip()

    phone.goto((site / "reference" / "jax.html").as_uri())
    button = phone.locator("#stack .doctest .copybtn")
    button.wait_for(state="attached")
    copied = button.evaluate(copy)
    shown = phone.locator("#stack .doctest pre").text_content() or ""
    lines = shown.splitlines()
    assert [line for line in copied.splitlines() if line] == [
        line[4:] for line in lines if line.startswith((">>> ", "... "))
    ]
    assert len(copied.splitlines()) < len(lines)
