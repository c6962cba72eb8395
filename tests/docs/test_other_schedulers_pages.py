"""docs/other_schedulers/: names, versions and links of the pages."""

import re

import pytest
from hypothesis import given
from support.docs.other_schedulers import INDEX, PAGES, page_settings, read_pairs, slug
from support.docs.pages import sections
from support.docs.plans import LIMITS, plans
from support.examples import examples

pytestmark = pytest.mark.slow


@examples(1)
@given(plans())
def test_plans_cover_every_name_of_the_pages(plan):
    pairs = read_pairs()
    names = {
        name
        for page in {pair.page for pair in pairs if not pair.is_configuration}
        for name in page_settings(page)
    }
    configured = {
        name
        for page in {pair.page for pair in pairs if pair.is_configuration}
        for name in page_settings(page)
    }
    assert names - configured <= plan.keys() <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_set_only_names_that_they_use(page):
    code = "".join(section.python() for section in sections(page)).partition("\n\n")[2]
    pairs = "".join(pair.before for pair in read_pairs() if pair.page == page)
    assert not [name for name in page_settings(page) if not re.search(rf"\b{name}\b", code + pairs)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_the_version_that_they_describe(page):
    introduction, *_ = page.read_text(encoding="utf-8").split("\n```", 1)
    assert re.search(r"commit [0-9a-f]{7}\b|(\)|torch|transformers) \d+\.\d+\b", introduction)


def test_index_links_every_section_once():
    rows = re.findall(
        r"^\| \[(.+)\]\((\w+)\.md#(.+?)\) \| .+ \| \[(.+)\]\(\2\.md\) \|$", INDEX.read_text("utf-8"), re.M
    )
    linked = [(page, anchor) for _, page, anchor, _ in rows]
    headings = [
        (page.stem, section.heading) for page in PAGES for section in sections(page) if section.heading
    ]
    slugs = [(page, slug(heading)) for page, heading in headings]
    assert sorted(linked) == sorted(slugs)
    assert {name: page for name, page, *_ in rows}.keys() == {heading for _, heading in headings}
    titles = {page.stem: page.read_text("utf-8").partition("\n")[0].removeprefix("# From ") for page in PAGES}
    assert all(title in titles[page] for _, page, _, title in rows)


def test_every_limit_is_in_the_words_of_a_page():
    pairs = read_pairs()
    assert [words for words in LIMITS if not any(words in pair.limits for pair in pairs)] == []
