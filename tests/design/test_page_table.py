"""The table of curves in a browser, code to copy, files, and what a reload keeps."""

import json
from dataclasses import replace

import pytest
from design.page import COSINE, PEAK, STABLE, STAGED
from playwright.sync_api import expect

from plateau_jax import compare

pytestmark = pytest.mark.slow

CHANGED = replace(STABLE, warmup_steps=700)


# The table.


def check_ratios(design, *curves):
    """Check that the table compares these curves as the library does."""
    design.settle()
    table = compare(*curves)
    rows = design.page.locator("#curves tbody tr").all()
    for row, bound, peak in zip(rows, table.bounds, table.peaks, strict=True):
        shown_bound = row.locator("[data-figure=bound] b")
        shown_peak = row.locator("[data-figure=peak-ratio] b")
        expect(shown_bound).to_have_text(f"× {bound:.3f}")
        expect(shown_peak).to_have_text(f"× {peak:.3f}")


def rename(design, name, text):
    field = design.field(f"Name of {name}")
    field.fill(text)
    field.blur()


def test_curves_are_compared_with_the_first(design):
    check_ratios(design, COSINE, STAGED, STABLE)
    expect(design.page.locator("polyline")).to_have_count(3)
    design.drag("Plateau 1, end", 40, 0)
    moved = design.curve
    check_ratios(design, COSINE, STAGED, moved)
    design.do("Make reference: Stages")
    check_ratios(design, STAGED, COSINE, moved)
    design.do("Hide Cosine")
    expect(design.page.locator("polyline")).to_have_count(2)
    design.do("Remove Cosine")
    check_ratios(design, STAGED, moved)
    design.do("Use the best peak for Stable")
    _, best = compare(STAGED, moved).peaks
    assert design.peak() == pytest.approx(PEAK * best, rel=5e-3)


def test_curves_of_other_length_are_marked(undone):
    marks = undone.page.locator(".length")
    marked_row = undone.page.get_by_role("row").filter(has=marks)
    remark = undone.page.locator("#lengths")
    expect(marks).to_have_count(0)
    expect(remark).to_be_hidden()
    undone.do(("Total steps", "7_000"))
    expect(marks).to_have_text(["7\u202f000 steps"])
    expect(marked_row).to_have_attribute("data-id", "3")
    expect(remark).to_be_visible()
    undone.do("Make reference: Stable")
    expect(marks).to_have_text(["10\u202f000 steps"] * 2)


def test_twelve_curves_are_distinct_and_the_most(design):
    rows = design.page.locator("#curves tbody tr")
    for number in range(4, 12):
        name = "a cosine"
        if number % 2 == 1:
            name = "a copy"
        design.button(name).click()
        expect(rows).to_have_count(number)
    design.button("a copy").press("Enter")
    design.settle()
    expect(design.selected).to_be_focused()  # as the button is disabled
    expect(design.button("a copy")).to_be_disabled()
    expect(design.button("a cosine")).to_be_disabled()

    assert len(set(design.names)) == 12
    assert design.names[3:6] == ["Cosine (2)", "Cosine (3)", "Cosine (4)"]
    look = "getComputedStyle(line).stroke + line.getAttribute('stroke-dasharray')"
    swatches = design.page.locator(".swatch path")
    looks = swatches.evaluate_all(f"lines => lines.map((line) => {look})")
    assert len(set(looks)) == 12

    design.do("Open…")
    design.dialog.get_by_role("textbox").fill('{"kind": "plateau", "total_steps": 10}')
    design.dialog.get_by_role("button", name="Open").click()
    message = "at most 12 curves: remove one"
    expect(design.dialog.get_by_role("alert")).to_contain_text(message)
    design.press("Escape")
    expect(rows.locator("[data-figure=bound]")).to_have_count(12)


# Names.


def test_emptied_name_is_distinct(design):
    rename(design, "Cosine", "Curve 3")
    rename(design, "Stages", "")
    rename(design, "Stable", " ")
    assert design.names == ["Curve 3", "Curve 2", "Curve 3 (2)"]


def test_undo_belongs_to_a_name_while_it_is_typed(design):
    """An answer changes the table, where the name is typed. The browser's undo survives that."""
    held = design.hold_the_next_answer()
    with design.page.expect_request("**/describe"):
        design.field("Warmup steps").fill("700")
    name = design.field("Name of Stable")
    name.press("Home")
    design.page.keyboard.type("Un")
    held[0].continue_()
    design.settle()
    expect(name).to_be_focused()
    expect(name).to_have_value("UnStable")

    design.press("Control+z")
    expect(name).to_have_value("Stable")
    design.press("Control+Shift+z")
    expect(name).to_have_value("UnStable")
    design.press("Control+z")
    expect(name).to_have_value("Stable")
    assert design.curve == CHANGED

    design.page.locator("#code").focus()
    design.press("Control+z")  # the focus is elsewhere
    assert design.curve == STABLE


# Code and files.


def test_code_is_copied_to_the_clipboard(design):
    parts = {
        "optax": "optax_schedule(",
        "PyTorch": "lambda_lr(",
        "JSON": '"plateaus": [[10, 40]]',
    }
    for tab, part in parts.items():
        design.page.get_by_role("radio", name=tab).check()
        design.button("Copy").click()
        status = design.page.get_by_role("status").filter(has_text="Copied")
        expect(status).to_be_visible()
        copied = design.page.evaluate("navigator.clipboard.readText()")
        assert copied == design.page.locator("#code").text_content()
        assert part in copied


ENTRY = {"name": "Stable", "peak": PEAK, "curve": STABLE.to_dict()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "in JSON at position 1"),
        ('{"kind": "plateau", "total_steps": 0}', "total_steps = 0 must lie"),
        (json.dumps({"curves": 13 * [ENTRY]}), "The page shows at most 12 curves"),
    ],
)
def test_wrong_json_is_rejected(undone, text, message):
    undone.do("Open…")
    pasted = undone.dialog.get_by_role("textbox")
    pasted.evaluate("(box, text) => (box.value = text)", text)
    undone.dialog.get_by_role("button", name="Open").click()
    alert = undone.dialog.get_by_role("alert")
    expect(alert).to_contain_text(message)
    undone.press("Escape")


SAVED_PAGE = [
    {"name": "Cosine", "peak": PEAK, "curve": COSINE.to_dict()},
    {"name": "Three stages", "peak": PEAK, "curve": STAGED.to_dict()},
    {"name": "Stable", "peak": 0.0125, "curve": STABLE.to_dict()},
]


def check_saved_page(design):
    assert design.names == [saved["name"] for saved in SAVED_PAGE]
    for saved in SAVED_PAGE:
        design.do(f"Edit {saved['name']}")
        assert design.curve.to_dict() == saved["curve"]
        assert design.peak() == saved["peak"]


def test_saved_page_is_opened_again(design, tmp_path):
    design.field("Peak learning rate").fill("0.0125")
    rename(design, "Stages", "Three stages")
    design.do(("Warmup steps", "20000"))  # not valid: saved as it was
    with design.page.expect_download() as download:
        design.button("Save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert json.loads(path.read_text()) == {"curves": SAVED_PAGE}

    design.do("Remove Cosine", "Open…")
    design.dialog.get_by_label("or choose a file").set_input_files(path)
    expect(design.dialog.get_by_role("textbox")).not_to_have_value("")
    design.accept()
    check_saved_page(design)

    # That is one step of undo, also after a reload.
    for _ in range(2):
        design.do("Undo")
        assert design.names == ["Three stages", "Stable"]
        design.reload()
        design.do("Redo")
        check_saved_page(design)


# Reloads, and a server that doesn't answer.


def test_reload_keeps_the_last_valid_picture(design):
    message = design.page.get_by_text("total_steps = 'many' must be an integer")
    stale = design.page.locator("#stale")
    design.do(("Warmup steps", "700"))
    drawn = design.drawn()
    design.do(("Total steps", "many"))
    for _ in range(2):
        design.reload()
        expect(design.field("Total steps")).to_have_value("many")
        expect(message).to_be_visible()
        expect(stale).to_be_visible()
        assert design.drawn() == drawn
        assert design.curve == CHANGED
    design.do(("Total steps", "10000"))
    assert design.curve == CHANGED
    expect(stale).to_be_hidden()


def test_page_works_without_storage(design):
    """If storage is full or blocked, the browser asks before it reloads the tab."""
    script = "Storage.prototype.setItem = () => { throw new Error('full') }"
    design.page.add_init_script(script)
    design.reload()
    design.do(("Warmup steps", "700"))
    assert design.curve == CHANGED
    asked = []

    def accept(dialog):
        asked.append(dialog.type)
        dialog.accept()

    design.page.on("dialog", accept)
    design.reload()
    assert asked == ["beforeunload"]
    assert design.curve == STABLE


def test_stopped_server_is_reported_until_it_answers(design, server):
    design.page.route("**/*", lambda route: route.abort())
    design.field("Warmup steps").fill("700")
    alert = design.page.get_by_role("alert").filter(has_text="The server does not answer")
    offline = design.page.locator("body.offline")
    expect(alert).to_contain_text(f"with the same command, on port {server.port}")
    expect(offline).to_be_attached()
    design.page.unroute_all()
    expect(offline).not_to_be_attached()  # without another change
    expect(design.page.locator("#trouble")).to_be_hidden()
    assert design.curve == CHANGED
