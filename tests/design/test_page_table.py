"""The table of curves in a browser, code to copy, files opened and saved, and what a reload keeps."""

import json
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Route, expect
from support.design.page import CURVES, DROP, PEAK, STABLE, STAGED, DesignPage

from plateau_jax import Curve, compare
from plateau_jax.design.questions import MAX_CURVES
from plateau_jax.theory.comparison import NOTE

pytestmark = pytest.mark.slow

CHANGED = replace(STABLE, warmup_steps=700)


def ratios(design: DesignPage) -> list[list[str]]:
    design.settle()
    figures = "[data-figure=bound] b, [data-figure=peak-ratio] b"
    return [row.locator(figures).all_inner_texts() for row in design.page.locator("#curves tbody tr").all()]


def expected_ratios(*curves: Curve) -> list[list[str]]:
    table = compare(*curves)
    pairs = zip(table.bounds, table.peaks, strict=True)
    return [[f"× {bound:.3f}", f"× {peak:.3f}"] for bound, peak in pairs]


def rename(design: DesignPage, name: str, text: str) -> None:
    field = design.field(f"Name of {name}")
    field.fill(text)
    field.blur()


def test_curves_are_compared_with_the_first(design):
    cosine, staged, stable = CURVES.values()
    assert ratios(design) == expected_ratios(cosine, staged, stable)
    for name in ("Bound", "Best peak"):  # as `compare` prints them
        expect(design.page.get_by_role("columnheader", name=name, exact=True)).to_be_visible()
        expect(design.page.locator(f"#curves [data-label='{name}']")).to_have_count(3)
    expect(design.page.locator("#note")).to_be_hidden()
    design.page.get_by_text("Ratios to the first curve, each at its best peak").press("Enter")
    expect(design.page.locator("#note")).to_be_visible()
    expect(design.page.locator("#note")).to_have_text(NOTE)
    expect(design.page.locator("polyline")).to_have_count(3)
    design.drag("Plateau 1, end", 40, 0)
    moved = design.curve
    assert ratios(design) == expected_ratios(cosine, staged, moved)
    design.do("Make reference: Stages")
    assert ratios(design) == expected_ratios(staged, cosine, moved)
    design.do("Hide Cosine")
    expect(design.page.locator("polyline")).to_have_count(2)
    design.do("Remove Cosine")
    assert ratios(design) == expected_ratios(staged, moved)
    design.do("Use the best peak for Stable")
    assert design.peak() == pytest.approx(PEAK * compare(staged, moved).peaks[1], rel=5e-3)


def test_curves_of_other_length_are_marked(design):
    marks = design.page.locator(".length")
    expect(marks).to_have_count(0)
    expect(design.page.locator("#lengths")).to_be_hidden()
    design.do(("Total steps", "7_000"))
    expect(marks).to_have_text(["7\u202f000 steps"])
    expect(design.page.get_by_role("row").filter(has=marks)).to_have_attribute("data-id", "3")
    expect(design.page.locator("#lengths")).to_be_visible()
    design.do("Make reference: Stable")
    expect(marks).to_have_text(["10\u202f000 steps"] * 2)


def test_twelve_curves_are_distinct_and_the_most(design):
    for number in range(4, MAX_CURVES):
        design.button("a copy" if number % 2 else "a cosine").click()
        expect(design.page.locator("#curves tbody tr")).to_have_count(number)
    design.button("a copy").press("Enter")
    design.settle()
    expect(design.selected).to_be_focused()  # as the button is disabled
    for name in ("a copy", "a cosine"):
        expect(design.button(name)).to_be_disabled()
    assert len(set(design.names)) == MAX_CURVES
    assert design.names[3:6] == ["Cosine (2)", "Cosine (3)", "Cosine (4)"]
    look = "getComputedStyle(line).stroke + line.getAttribute('stroke-dasharray')"
    looks = design.page.locator(".swatch line").evaluate_all(f"lines => lines.map((line) => {look})")
    assert len(set(looks)) == MAX_CURVES
    design.do("Open…")
    design.dialog.get_by_role("textbox").fill('{"total_steps": 10}')
    design.dialog.get_by_role("button", name="Open").click()
    expect(design.dialog.get_by_role("alert")).to_contain_text(f"at most {MAX_CURVES} curves: remove one")
    design.press("Escape")
    expect(design.page.locator("#curves tbody [data-figure=bound]")).to_have_count(MAX_CURVES)


def test_emptied_name_is_distinct(design):
    for name, text in (("Cosine", "Curve 3"), ("Stages", ""), ("Stable", " ")):
        rename(design, name, text)
    assert design.names == ["Curve 3", "Curve 2", "Curve 3 (2)"]


def test_undo_belongs_to_a_name_while_it_is_typed(design):
    """An answer changes the table, where the name is typed. The browser's undo survives that."""
    held: list[Route] = []
    design.page.route("**/page", lambda route: route.continue_() if held else held.append(route))
    with design.page.expect_request("**/page"):
        design.field("Warmup steps").fill("700")
    name = design.field("Name of Stable")
    name.press("Home")
    design.page.keyboard.type("Un")
    held[0].continue_()
    design.settle()
    expect(name).to_be_focused()
    expect(name).to_have_value("UnStable")
    for key, value in (("Control+z", "Stable"), ("Control+Shift+z", "UnStable"), ("Control+z", "Stable")):
        design.press(key)
        expect(name).to_have_value(value)
    assert design.curve == CHANGED
    design.page.locator("#code").focus()
    design.press("Control+z")  # the focus is elsewhere
    assert design.curve == STABLE


def test_code_is_copied_to_the_clipboard(design):
    parts = {"optax": "optax_schedule(", "PyTorch": "lambda_lr(", "JSON": '"plateaus": [[10, 40]]'}
    for tab, part in parts.items():
        design.page.get_by_role("radio", name=tab).check()
        design.button("Copy").click()
        expect(design.page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        text = design.page.evaluate("navigator.clipboard.readText()")
        assert text == design.page.locator("#code").text_content()
        assert part in text


def test_json_can_be_pasted_and_dropped(design):
    curve = STAGED.cooldown(3_000, 500).then(STABLE, scale=0.125)
    pasted = design.dialog.get_by_role("textbox")
    design.do("Open…")
    for text, message in (("{", "in JSON at position 1"), ('{"total_steps": 0}', "total_steps = 0 must lie")):
        pasted.evaluate("(box, text) => (box.value = text)", text)
        design.dialog.get_by_role("button", name="Open").click()
        expect(design.dialog.get_by_role("alert")).to_contain_text(message)
    pasted.fill(json.dumps(curve.to_dict()))
    design.accept()
    design.check(curve)
    # A saved page replaces all curves.
    page = {"curves": [{"name": "Only", "peak": 0.5, "curve": STABLE.to_dict()}]}
    for content, expected in ((curve.to_dict(), [*design.names, "dropped"]), (page, ["Only"])):
        design.page.evaluate(DROP, ["dropped.json", json.dumps(content)])
        expect(pasted).not_to_have_value("")
        design.accept()
        assert design.names == expected
    assert (design.curve, design.peak()) == (STABLE, 0.5)


def test_saved_page_is_opened_again(design, tmp_path):
    design.field("Peak learning rate").fill("0.0125")
    rename(design, "Stages", "Three stages")
    design.do(("Warmup steps", "20000"))  # not valid: saved as it was
    with design.page.expect_download() as download:
        design.button("Save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    peaks = {"Cosine": PEAK, "Three stages": PEAK, "Stable": 0.0125}
    expected = [
        {"name": name, "peak": peak, "curve": curve.to_dict()}
        for (name, peak), curve in zip(peaks.items(), CURVES.values(), strict=True)
    ]
    assert json.loads(path.read_text()) == {"curves": expected}
    design.do("Remove Cosine", "Open…")
    design.dialog.get_by_label("or choose a file").set_input_files(path)
    expect(design.dialog.get_by_role("textbox")).not_to_have_value("")
    design.accept()
    for _ in range(2):
        assert design.names == list(peaks)
        for entry in expected:
            design.do(f"Edit {entry['name']}")
            assert (design.curve.to_dict(), design.peak()) == (entry["curve"], entry["peak"])
        design.do("Undo")
        assert design.names == ["Three stages", "Stable"]
        design.reload()
        design.do("Redo")


def test_reload_keeps_undo_redo_and_the_last_valid_picture(design):
    design.do(("Warmup steps", "700"))
    for button, curve in (("Undo", STABLE), ("Redo", CHANGED)):
        design.reload()
        design.do(button)
        assert design.curve == curve
    drawn = design.drawn()
    design.do(("Total steps", "many"))
    for _ in range(2):
        design.reload()
        expect(design.field("Total steps")).to_have_value("many")
        expect(design.page.get_by_text("total_steps = 'many' must be an integer")).to_be_visible()
        assert (design.drawn(), design.curve) == (drawn, CHANGED)
        expect(design.page.locator("#stale")).to_be_visible()
    design.do(("Total steps", "10000"))
    assert design.curve == CHANGED
    expect(design.page.locator("#stale")).to_be_hidden()


def test_page_works_without_storage(design):
    """If storage is full or blocked, the browser asks before it reloads the tab."""
    design.page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full') }")
    design.reload()
    design.do(("Warmup steps", "700"))
    assert design.curve == CHANGED
    asked: list[str] = []
    design.page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    design.reload()
    assert asked == ["beforeunload"]
    assert design.curve == STABLE


def test_stopped_server_is_reported_until_it_answers(design, server):
    design.page.route("**/*", lambda route: route.abort())
    design.field("Warmup steps").fill("700")
    alert: Any = design.page.get_by_role("alert").filter(has_text="The server does not answer")
    expect(alert).to_contain_text(f"with the same command, on port {server.port}")
    expect(design.page.locator("body.offline")).to_be_attached()
    design.page.unroute_all()
    expect(design.page.locator("body.offline")).not_to_be_attached()  # without another change
    expect(design.page.locator("#trouble")).to_be_hidden()
    assert design.curve == CHANGED
