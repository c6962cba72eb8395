"""The table of curves on the design page, in a browser: what is compared, and how it is distinguished."""

import pytest
from playwright.sync_api import expect
from support.design.page import COSINE, STAGED, curve_of_json, wait_until_settled

from plateau_jax import PlateauCurve, compare
from plateau_jax.design.answers import MAX_CURVES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("button", "shape"), [("a cosine", "cosine"), ("a line to 0", "linear")])
def test_added_curve_has_the_selected_warmup(page, button, shape):
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name=button, exact=True).click()
    assert curve_of_json(page) == PlateauCurve(10_000, warmup_steps=500, decay_shape=shape)
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name="+ Cooldown").click()
    page.get_by_label("Cooldown: First step").fill("7_000")
    page.get_by_label("Cooldown: Steps").fill("1_000")
    wait_until_settled(page)
    page.get_by_role("button", name=button, exact=True).click()
    assert curve_of_json(page) == PlateauCurve(8_000, warmup_steps=500, decay_shape=shape)


def test_added_stages_have_the_selected_warmup(page):
    page.get_by_label("Initial LR / peak").fill("0.25")
    page.get_by_label("Warmup shape").select_option("cosine")
    wait_until_settled(page)
    page.get_by_role("button", name="stages", exact=True).click()
    curve = curve_of_json(page)
    assert (curve.start, curve.stages[0]) == (0.25, (500, 1, "cosine"))
    assert curve.total_steps == 10_000


def test_copy_of_an_invalid_curve_is_the_last_valid_one(page):
    before = curve_of_json(page)
    page.get_by_label("Warmup steps").fill("20000")
    wait_until_settled(page)
    page.get_by_role("button", name="a copy", exact=True).click()
    expect(page.get_by_role("radio", name="Edit Stable (2)", exact=True)).to_be_checked()
    assert curve_of_json(page) == before


def test_curves_of_other_length_are_marked(page):
    marks = page.locator(".length")
    expect(marks).to_have_count(0)
    expect(page.locator("#lengths")).to_be_hidden()
    page.get_by_label("Total steps").fill("7_000")
    wait_until_settled(page)
    expect(marks).to_have_text(["7\u202f000 steps"])
    expect(page.get_by_role("row").filter(has=marks)).to_have_attribute("data-id", "3")
    expect(page.locator("#lengths")).to_be_visible()
    page.get_by_role("button", name="Make reference: Stable").click()
    wait_until_settled(page)
    expect(marks).to_have_text(["10\u202f000 steps"] * 2)
    page.get_by_role("radio", name="Edit Cosine").check()
    expect(page.locator("#picture .end")).to_have_count(1)  # of the short curve


def test_table_has_the_names_of_compare(page):
    printed = str(compare(COSINE, STAGED)).splitlines()[0].split("  ")
    names = [name.strip() for name in printed if name.strip()]
    heads = [head.lower() for head in page.locator("#curves th.number").all_inner_texts()]
    assert [head for head in heads if head in names] == names
    for name in names:
        expect(page.locator(f"#curves [data-label='{name.capitalize()}']")).to_have_count(3)


def test_twelve_curves_have_distinct_looks_and_names(page):
    for number in range(4, MAX_CURVES + 1):
        page.get_by_role("button", name="a copy" if number % 2 else "a cosine", exact=True).click()
        expect(page.locator("#curves tbody tr")).to_have_count(number)
    wait_until_settled(page)
    names = [name.input_value() for name in page.get_by_role("textbox", name="Name of").all()]
    assert len(set(names)) == MAX_CURVES
    assert names[3:6] == ["Cosine (2)", "Cosine (3)", "Cosine (4)"]
    looks = page.locator(".swatch line").evaluate_all(
        "lines => lines.map((line) => getComputedStyle(line).stroke + line.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == MAX_CURVES


def test_emptied_name_is_distinct(page):
    for name in ("Cosine", "Stages"):
        field = page.get_by_role("textbox", name=f"Name of {name}")
        field.fill("Curve 3" if name == "Cosine" else "")
        field.blur()
    field = page.get_by_role("textbox", name="Name of Stable")
    field.fill(" ")
    field.blur()
    names = [name.input_value() for name in page.get_by_role("textbox", name="Name of").all()]
    assert names == ["Curve 3", "Curve 2", "Curve 3 (2)"]


def test_note_is_one_line_that_opens(page):
    page.set_viewport_size({"width": 1440, "height": 900})
    line = page.get_by_text("Ratios to the first curve, each at its best peak")
    box = line.bounding_box()
    assert box
    assert box["height"] < 30
    expect(page.locator("#note")).to_be_hidden()
    line.press("Enter")
    expect(page.locator("#note")).to_be_visible()


def test_reload_keeps_the_last_valid_picture(page):
    page.get_by_label("Warmup steps").fill("700")
    valid = curve_of_json(page)
    drawn = page.locator("polyline.selected").get_attribute("points")
    page.get_by_label("Total steps").fill("many")
    wait_until_settled(page)
    for _ in range(2):
        page.reload()
        wait_until_settled(page)
        expect(page.get_by_label("Total steps")).to_have_value("many")
        expect(page.get_by_text("total_steps = 'many' must be an integer")).to_be_visible()
        assert page.locator("polyline.selected").get_attribute("points") == drawn
        assert curve_of_json(page) == valid
        expect(page.locator("#stale")).to_be_visible()
    page.get_by_label("Total steps").fill("10000")
    assert curve_of_json(page) == valid
    expect(page.locator("#stale")).to_be_hidden()


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_segments_fit_into_their_card(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_role("textbox", name="Peak learning rate").fill("0.000123457")
    wait_until_settled(page)
    rows = page.locator("#segments tbody tr")
    expect(rows.nth(1).locator("td").last).to_have_text("1.029e-4")
    expect(rows.nth(1).locator("td").last).to_have_attribute("title", "0.000102881")
    is_cut_off = "table => table.scrollWidth > table.parentElement.clientWidth"
    assert not page.locator("#segments").evaluate(is_cut_off)
