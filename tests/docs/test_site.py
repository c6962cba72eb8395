"""The built site: its reference, its search, and its width on a phone.

The build fails if a link leads nowhere. Queries are messages, names, and titles of public issues of
other projects.
"""

import os
import re
import shlex
import subprocess
import sys
from urllib.parse import quote

import pytest
from bs4 import BeautifulSoup
from design.page import chromium
from support.docs.pages import ROOT

pytestmark = pytest.mark.slow

PHONE_WIDTH = 390
"""In pixels."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
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
def html(site):
    """The pages, by their paths in the site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(site).as_posix()
        pages[name] = BeautifulSoup(text, "html.parser")
    return pages


@pytest.fixture(scope="module")
def browser():
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def phone(browser):
    return browser.new_page(viewport={"width": PHONE_WIDTH, "height": 844})


@pytest.fixture(scope="module")
def search(site, browser):
    """A function that returns the links of the results, from the first."""
    tab = browser.new_page()

    def links(query):
        address = (site / "search.html").as_uri()
        tab.goto(f"{address}?q={quote(query)}")
        tab.locator(".search-summary:not(:empty)").wait_for()
        results = tab.locator("#search-results li > a").all()
        return [str(link.get_attribute("href")) for link in results]

    return links


UNRENDERED = re.compile(r"`|\w\*\*|^ *[->] |::")
"""Code, bold names, lists and quotations that are shown as text."""


def test_reference_contains_no_unrendered_markup(html):
    wrong = []
    for file, page in html.items():
        if file.startswith("reference/"):
            body = BeautifulSoup(str(page.article), "html.parser")
            for code in body.select("pre, code"):
                code.decompose()
            lines = body.get_text().splitlines()
            wrong.extend(f"{file}: {line}" for line in lines if UNRENDERED.search(line))
    assert not wrong, "\n".join(wrong)


BEYOND_THE_EDGE = """edge => [...document.querySelectorAll(".content *, header *")]
    .filter(part => !part.closest("pre") || part.tagName === "PRE")
    .filter(part => part.getBoundingClientRect().right > edge)
    .map(part => part.tagName + ": " + part.textContent.trim().slice(0, 40))"""


def test_only_code_scrolls_sideways_on_a_phone(site, html, phone):
    """A code block may scroll; everything else must end before the right edge."""
    wide = []
    for file in html:
        phone.goto((site / file).as_uri())
        wide.extend(f"{file}: {part}" for part in phone.evaluate(BEYOND_THE_EDGE, PHONE_WIDTH))
    assert not wide, "\n".join(wide)


LINKS_FOR = {
    "allow specifying LR schedule in terms of tokens": "clocks.html",
    "get_cosine_schedule_with_warmup": "other_schedulers.html",
    "Scheduler Not Pickleable": "#attributeerror-can-t-pickle",
    "Tried to step 1002 times": "#valueerror-tried-to-step",
    "extend cosine schedule": "#how-do-i-extend-a-cosine-schedule",
}
"""A title, an identifier, an unknown word, a message and a question that people type, and a part of
the right link."""


@pytest.mark.parametrize("query", LINKS_FOR)
def test_right_section_is_among_the_first_three(query, search):
    first_three = search(query)[:3]
    assert any(LINKS_FOR[query] in link for link in first_three), first_three
