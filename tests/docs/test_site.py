"""The built site: its links, its search, its reference of every public name, its width on a phone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Page
from support.design.browser import chromium
from support.docs.reference import NAMES, PACKAGES, entries, members
from support.docs.site import ROOT, build, described, pages

pytestmark = pytest.mark.slow

WIDTH = 390
"""Of a phone, in pixels."""

# Public names that compute no number, and why.
WITHOUT_EQUATION = {
    "a state, a record or a type of function: what computes it has the equation": (
        "plateau_jax.Comparison",
        "plateau_jax.CurveArguments",
        "plateau_jax.Outlook",
        "plateau_jax.ScaleByCurveState",
        "plateau_jax.Stage",
        "torch_bridge.CarriedLoss",
        "torch_bridge.CurveLRState",
        "torch_bridge.FollowerState",
        "torch_bridge.MeanLoss",
        "torch_bridge.StepResult",
        "torch_bridge.TrainStepState",
    ),
    "moves, keeps, draws or measures what others computed": (
        "plateau_jax.plot",
        "plateau_jax.stack",
        "torch_bridge.Checkpoints",
        "torch_bridge.MetricLog",
        "torch_bridge.distribute",
        "torch_bridge.make_loader",
        "torch_bridge.prefetch",
        "torch_bridge.profile",
        "torch_bridge.tensors",
    ),
    "says something": ("plateau_jax.CurveWarning", "torch_bridge.is_main"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "site"
    build(folder)
    return folder


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, BeautifulSoup]:
    return pages(site)


@pytest.fixture(scope="module")
def reference(html: dict[str, BeautifulSoup]) -> dict[str, Tag]:
    """What the reference says of each name and of each member, in the order of its index."""
    listed = html["reference/index.html"].select("article section > ul > li > p > a")
    files = dict.fromkeys(str(link["href"]).partition("#")[0] for link in listed)
    return {name: body for file in files for name, body in described(html[f"reference/{file}"]).items()}


@pytest.fixture(scope="module")
def phone() -> Iterator[Page]:
    """A tab that is as wide as a phone."""
    with chromium() as window:
        yield window.new_page(viewport={"width": WIDTH, "height": 844})


def test_every_document_is_a_page(html: dict[str, BeautifulSoup]) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))]
    missing = {path.with_suffix(".html").as_posix() for path in documents} - html.keys()
    assert not missing, "\n".join(sorted(missing))
    titles = {file: page.select_one("title").get_text() for file, page in html.items()}
    assert titles["choosing_a_curve.html"].startswith("Choosing a curve")
    assert titles["changelog.html"].startswith("Changelog")


def test_links_lead_to_a_file_and_an_anchor_of_the_site(site: Path, html: dict[str, BeautifulSoup]) -> None:
    """Of links to other places only the form is checked."""
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
                other = path.resolve().relative_to(site.resolve()).as_posix() if path.exists() else ""
                known = anchors.get(other, set[str]())
                is_right = other and (not address.fragment or unquote(address.fragment) in known)
            if not is_right:
                wrong.append(f"{file}: {target}")
    assert not wrong, "\n".join(wrong)


def test_a_page_loads_nothing_from_elsewhere(html: dict[str, BeautifulSoup]) -> None:
    loaded = [
        f"{file}: {tag}"
        for file, page in html.items()
        for tag in page.select("[src], link[href]:not([rel=canonical])")
        if re.match(r"(https?:)?//", str(tag.get("src") or tag.get("href")))
    ]
    assert not loaded, "\n".join(loaded)


def test_the_search_knows_every_page_and_name(site: Path, html: dict[str, BeautifulSoup]) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    assert {f"{name}.html" for name in index["docnames"]} == html.keys() - {"search.html"}
    known = {f"{prefix}.{entry[4]}" for prefix, found in index["objects"].items() for entry in found}
    assert NAMES.keys() <= known


def test_every_public_name_is_in_the_reference(reference: dict[str, Tag]) -> None:
    for package in PACKAGES:
        for name in package.__all__:
            own = f"{package.__name__}.{name}"
            if own not in NAMES:  # `torch_bridge` hands on the curves of `plateau_jax`
                own = f"plateau_jax.{name}"
                assert getattr(package, name) is NAMES[own]
            assert own in reference, own
    assert {name for name in reference if name.count(".") == 1} == NAMES.keys()


def test_index_has_every_name_in_the_order_of_its_pages(
    html: dict[str, BeautifulSoup], reference: dict[str, Tag]
) -> None:
    lines = html["reference/index.html"].select("article section > ul > li")
    shown = [line.get_text() for line in lines]
    names = [name.partition(".")[2] for name in reference if name.count(".") == 1]
    assert [line.partition(":")[0] for line in shown] == names
    assert all(line.partition(":")[2].strip() for line in shown)


def test_pages_show_every_member_with_its_docstring(reference: dict[str, Tag]) -> None:
    missing = [
        member.name
        for member in members()
        if not (
            reference[member.name].get_text(strip=True)
            if member.name in reference
            # A field of a dataclass is an argument of its class.
            else member.name.rpartition(".")[2] in entries(member.its_class, "Args", "Attributes")
        )
    ]
    assert not missing, "\n".join(missing)


def test_what_computes_a_number_shows_its_equation(reference: dict[str, Tag]) -> None:
    without = {name for names in WITHOUT_EQUATION.values() for name in names}
    missing = {name for name in NAMES if not reference[name].select(".highlight-text")} ^ without
    assert not missing, "\n".join(sorted(missing))


def test_no_part_of_a_sentence_is_taken_for_a_type(reference: dict[str, Tag]) -> None:
    """Types stand beside the name; Sphinx can take what comes before a colon for another one."""
    wrong = [
        name for name, body in reference.items() for tag in body.select("dt") if tag.get_text() == "Type:"
    ]
    assert not wrong, "\n".join(wrong)


def test_no_markup_is_left_in_the_reference(reference: dict[str, Tag]) -> None:
    """Such as a list shown as text, a section that was not recognised, a lone star or quote."""
    left = list[str]()
    for name, body in reference.items():
        shown = BeautifulSoup(str(body), "html.parser")
        # Examples, code inside of text, titles of sections; not equations.
        for tag in shown.select(".doctest, .highlight-python, .highlight-default, code, dt, .rubric"):
            tag.decompose()
        # A parameter's own stars stay: **settings.
        wrong = re.compile(r"`|\*(?!\*?\w+( |$))|^ *- |^ *>|::|^[A-Z]\w+:$")
        left += [f"{name}: {line}" for line in shown.get_text().splitlines() if wrong.search(line)]
    assert not left, "\n".join(left)


def test_nothing_but_code_scrolls_sideways_on_a_phone(
    site: Path, html: dict[str, BeautifulSoup], phone: Page
) -> None:
    """A block of code scrolls by itself; all else ends before the right edge."""
    beyond = """edge => [...document.querySelectorAll(".content *, header *")]
        .filter(part => !part.closest("pre") || part.tagName === "PRE")
        .filter(part => part.getBoundingClientRect().right > edge)
        .map(part => part.tagName + ": " + part.textContent.trim().slice(0, 40))"""
    wide = list[str]()
    for file in html:
        phone.goto((site / file).as_uri())
        wide += [f"{file}: {part}" for part in phone.evaluate(beyond, WIDTH)]
    assert not wide, "\n".join(wide)


def test_the_search_finds_a_name_without_a_server(site: Path, phone: Page) -> None:
    phone.goto(f"{(site / 'search.html').as_uri()}?q=find_batch_size")
    found = phone.locator("#search-results li a").first
    found.wait_for()
    assert "find_batch_size" in str(found.get_attribute("href"))
