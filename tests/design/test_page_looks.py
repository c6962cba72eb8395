"""What the design page shows at every size and in forced colours, in a browser."""

import re

import pytest
from playwright.sync_api import expect
from support.design.design import served
from support.design.page import wait_until_settled

from plateau_jax import PlateauCurve
from plateau_jax.design.answers import initial_curves

pytestmark = pytest.mark.slow

TICKS = """
() => [...document.querySelectorAll("#picture .tick:not([text-anchor=end])")].map((label) => {
    const { left, right } = label.getBoundingClientRect();
    return [label.textContent, left, right];
})
"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (720, 450), (390, 844), (320, 568)])
def test_ticks_are_whole_steps_apart(browser, width, height):
    with served(initial_curves([("One", PlateauCurve(1)), ("Two", PlateauCurve(1))], 3e-4)) as server:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(server.address)
        wait_until_settled(page)
        for total in (1, 2, 3, 5, 7, 11, 99, 12_345, 1_000_000, 2**31 - 1):
            page.get_by_label("Total steps").fill(str(total))
            # The bound of two billion steps, which takes seconds, is not awaited.
            expect(page.locator("#code")).to_contain_text(f"PlateauCurve({total})")
            labels = sorted(page.evaluate(TICKS), key=lambda label: label[1])
            steps = [int(text.replace("\u202f", "")) for text, *_ in labels]
            assert len(steps) >= 2, (total, steps)
            assert steps == sorted(set(steps)), total
            ends = [right for *_, right in labels]
            begins = [left for _, left, _ in labels]
            assert all(end + 4 < begin for end, begin in zip(ends, begins[1:], strict=False)), total
            assert begins[0] >= 0
            assert ends[-1] <= width
        page.close()


SIZES = [(1440, 900), (1024, 768), (720, 900), (390, 844)]
TOPS = """
() => [...document.querySelectorAll(".column:first-child > .card")]
    .map((card) => card.getBoundingClientRect().top)
"""


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_code_is_seen_at_first_sight_and_cards_come_in_order(browser, server, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(server.address)
    wait_until_settled(page)
    box = page.locator("#code").bounding_box()
    assert box["y"] + 60 < height
    page.set_viewport_size({"width": 390 if width > 900 else 1200, "height": height})
    page.set_viewport_size({"width": width, "height": height})
    expect(page.locator(".column:first-child > .controls")).to_have_count(int(width < 900))
    tops = page.evaluate(TOPS)
    assert tops == sorted(tops)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_show_tab_and_focus(page, scheme):
    page.emulate_media(color_scheme=scheme, forced_colors="active")
    chosen = page.locator("#formats label:has(:checked)")
    other = page.locator("#formats label:not(:has(:checked))").first

    def look(tab):
        return tab.evaluate("tab => getComputedStyle(tab).borderColor + getComputedStyle(tab).color")

    assert look(chosen) != look(other)
    before = look(other)
    other.click()
    assert look(page.locator("#formats label:has(:checked)")) != before
    handle = page.get_by_role("slider", name="Plateau 1, end", exact=True)
    ring = handle.locator(".ring")
    assert ring.evaluate("ring => getComputedStyle(ring).stroke") == "none"
    handle.focus()
    page.keyboard.press("ArrowRight")  # the focus is visible after a key
    wait_until_settled(page)
    colour = ring.evaluate("ring => getComputedStyle(ring).stroke")
    assert re.match(r"rgb", colour)
    card = page.locator(".picture").evaluate("card => getComputedStyle(card).backgroundColor")
    assert colour != card
    name = page.get_by_role("textbox", name="Name of Stable")
    name.focus()
    assert name.evaluate("field => getComputedStyle(field).outlineStyle") != "none"
    expect(name).to_be_focused()
