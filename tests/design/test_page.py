"""The page in a browser: the table of curves, the code to copy, and the layout."""

import json

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.design.design import served
from support.design.page import (
    COSINE,
    PEAK,
    STABLE,
    STAGED,
    assert_shown,
    at_both_sizes,
    curve_of_json,
    drag,
    wait_until_settled,
)

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.questions import MAX_CURVES
from plateau_jax.theory.comparison import NOTE

pytestmark = pytest.mark.slow


NAME_OF_FOCUSED = """
() => {
    const { id, dataset, ariaLabel, labels, textContent } = document.activeElement;
    return id || dataset.path || ariaLabel || labels?.[0]?.textContent || textContent;
}
"""


def test_tab_reaches_every_control_by_name(page):
    page.mouse.move(0, 0)
    reached: set[str] = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(NAME_OF_FOCUSED))
    names = (
        "optax",
        "copy",
        "open",
        "Peak learning rate",
        "Plateau 1, place",
        "Step at which to read learning rates",
    )
    assert {*names, "curve/decay_shape", "a copy", "Edit Stable", "curve/cooldown"} <= reached
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, select, button, [role=slider]')]"
        ".filter((node) => !node.ariaLabel && !node.labels?.length && !node.textContent.trim())"
        ".map((node) => node.outerHTML)"
    )
    assert unnamed == []


def test_tab_stops_in_one_row_of_the_table(page):
    page.get_by_role("radio", name="Edit Stable").focus()
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")
        )
    names = ["Name of", "Use the best peak for", "Make reference:", "Hide", "Remove"]
    assert reached == [*(f"{name} Stable" for name in names), "a copy"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Show Stable")).to_be_focused()
    page.get_by_role("radio", name="Edit Cosine").check()
    wait_until_settled(page)
    expect(page.locator("polyline")).to_have_count(2)


def test_curves_are_compared_with_the_first(page):
    def figures() -> list[list[str]]:
        wait_until_settled(page)
        rows = page.locator("#curves tbody tr").all()
        return [
            [row.locator(f"[data-figure={name}] b").inner_text() for name in ("bound", "peak-ratio")]
            for row in rows
        ]

    def expected(*curves: Curve) -> list[list[str]]:
        table = compare(*curves)
        return [
            [f"× {number:.3f}" for number in pair] for pair in zip(table.bounds, table.peaks, strict=True)
        ]

    assert figures() == expected(COSINE, STAGED, STABLE)
    expect(page.locator("#note")).to_have_text(NOTE)
    expect(page.locator("polyline")).to_have_count(3)
    drag(page, "Plateau 1, end", 40, 0)
    moved = curve_of_json(page)
    assert figures() == expected(COSINE, STAGED, moved)
    page.get_by_role("button", name="Make reference: Stages").click()
    assert figures() == expected(STAGED, COSINE, moved)
    page.get_by_role("button", name="Hide Cosine").click()
    expect(page.locator("polyline")).to_have_count(2)
    page.get_by_role("button", name="Remove Cosine").click()
    assert figures() == expected(STAGED, moved)
    page.get_by_role("button", name="Use the best peak for Stable").click()
    wait_until_settled(page)
    peak = PEAK * compare(STAGED, moved).peaks[1]
    assert float(page.get_by_role("textbox", name="Peak learning rate").input_value()) == pytest.approx(
        peak, rel=5e-3
    )
    page.get_by_role("button", name="a line to 0", exact=True).click()
    line = PlateauCurve(10_000, warmup_steps=500, decay_shape="linear")
    assert curve_of_json(page) == line
    assert figures() == expected(STAGED, moved, line)


def test_code_is_copied_to_the_clipboard(page):
    for tab, part in (
        ("optax", "optax_schedule("),
        ("PyTorch", "lambda_lr("),
        ("JSON", '"plateaus": [[10, 40]]'),
    ):
        page.get_by_role("radio", name=tab).check()
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text == page.locator("#code").text_content()
        assert part in text


@pytest.mark.parametrize("source", ["pasted", "file"])
def test_json_can_be_opened(page, tmp_path, source):
    curve = STAGED.cooldown(3_000, 500).then(STABLE, scale=0.125)
    page.get_by_role("button", name="Open…").click()
    dialog = page.get_by_role("dialog")
    pasted = dialog.get_by_role("textbox")
    for text, message in (
        ("{", "in JSON at position 1"),
        ('{"total_steps": 0}', "total_steps = 0 must lie"),
    ):
        pasted.evaluate("(box, text) => (box.value = text)", text)
        dialog.get_by_role("button", name="Open").click()
        expect(dialog.get_by_role("alert")).to_contain_text(message)
    if source == "file":
        path = tmp_path / "saved.json"
        path.write_text(json.dumps(curve.to_dict()))
        dialog.get_by_label("or choose a file").set_input_files(path)
        expect(pasted).to_have_value(path.read_text())
    else:
        pasted.fill(json.dumps(curve.to_dict()))
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_be_hidden()
    assert_shown(page, curve)
    expect(page.locator("#curves tbody tr")).to_have_count(4)


def test_selecting_a_curve_is_not_an_undo_step(page):
    page.get_by_label("Warmup steps").fill("700")
    page.get_by_role("radio", name="Edit Cosine").check()
    assert curve_of_json(page) == COSINE
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    assert curve_of_json(page) == STABLE


def test_curves_can_be_added_up_to_the_limit(page):
    for number in range(4, MAX_CURVES + 1):
        page.get_by_role("button", name="a copy", exact=True).click()
        expect(page.locator("#curves tbody tr")).to_have_count(number)
    for name in ("a copy", "a cosine"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    page.get_by_role("button", name="Open…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill('{"total_steps": 10}')
    dialog.get_by_role("button", name="Open").click()
    expect(dialog.get_by_role("alert")).to_contain_text(f"at most {MAX_CURVES} curves: remove one")
    page.keyboard.press("Escape")
    wait_until_settled(page)
    expect(page.locator("#curves tbody [data-figure=bound]")).to_have_count(MAX_CURVES)


def test_added_cooldown_is_a_fifth_of_the_steps_after_the_warmup(page):
    page.get_by_role("button", name="stable, then a cooldown", exact=True).click()
    curve = curve_of_json(page)
    assert isinstance(curve, PlateauCurve)
    assert (curve.total_steps, curve.warmup_steps, curve.decay_shape) == (10_000, 500, "1-sqrt")
    assert curve(8_100) == 1 > curve(8_101)


def test_page_works_without_storage(page):
    """If storage is full or blocked, the browser asks before it reloads the tab."""
    page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full') }")
    page.reload()
    wait_until_settled(page)
    page.get_by_label("Warmup steps").fill("700")
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 700})
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.reload()
    assert asked == ["beforeunload"]
    assert curve_of_json(page) == STABLE


def test_added_stages_start_at_peak_without_warmup(page):
    for _ in range(2):  # the second time after a staged curve, which has no warmup
        page.get_by_role("button", name="stages", exact=True).click()
        expect(page.get_by_label("Stage 1, steps")).to_be_visible()
        assert curve_of_json(page)(np.arange(10_000)).max() == 1


@at_both_sizes
def test_page_does_not_scroll_sideways(page):
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name="+ Continuation").last.click()
    wait_until_settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


KINDS = {
    "Cosine": COSINE,
    "Stable": STABLE,
    "Absolute plateau": PlateauCurve(10_000, absolute_plateaus=[(8_000, 500)]),
    "Stages": STAGED,
    "Formulas": StagedCurve(
        [(50_000, 1.0, "exponential"), (1_500_000, 0.25, "(1-x)^2.75"), (500, 0.1, "t^-0.5")], start=0.01
    ),
    "Cooldown": COSINE.cooldown(6_000, 1_000),
    "Continuation": COSINE.then(STAGED.cooldown(4_000, 1_000)).then(STABLE, scale=0.5),
}
CUT_OFF = """
() => [...document.querySelectorAll(".card :is(a, button, input, select, summary, textarea)")]
    .filter((control) => control.checkVisibility())
    .filter((control) => {
        const card = control.closest(".card").getBoundingClientRect();
        const { left, right, top, bottom } = control.getBoundingClientRect();
        if (left < card.left || right > card.right || top < card.top || bottom > card.bottom) return true;
        for (let node = control.parentElement; node !== null; node = node.parentElement) {
            const box = node.getBoundingClientRect();
            const isClipped = left < box.left - 0.5 || right > box.right + 0.5;
            if (isClipped && getComputedStyle(node).overflowX !== "visible") return true;
        }
        return control.scrollWidth > control.clientWidth + 1;  // its text
    })
    .map((control) => control.ariaLabel || control.dataset.path || control.textContent)
"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (900, 600), (720, 450), (390, 844)])
def test_no_control_is_cut_off(browser, width, height):
    with served(initial_curves(list(KINDS.items()), PEAK)) as server:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(server.address)
        for kind in KINDS:
            page.get_by_role("radio", name=f"Edit {kind}", exact=True).check()
            wait_until_settled(page)
            assert page.evaluate(CUT_OFF) == [], kind
        page.close()


def test_stopped_server_is_reported_until_it_answers(browser, server):
    page = browser.new_page()
    page.goto(server.address)
    wait_until_settled(page)
    page.route("**/*", lambda route: route.abort())
    page.get_by_label("Warmup steps").fill("700")
    expect(page.get_by_role("alert").filter(has_text="The server does not answer")).to_contain_text(
        f"with the same command, on port {server.port}"
    )
    expect(page.locator("body.offline")).to_be_attached()
    assert Axe().run(page).response["violations"] == []
    page.unroute_all()
    expect(page.locator("body.offline")).not_to_be_attached()  # without another change
    expect(page.locator("#trouble")).to_be_hidden()
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 700})
    page.close()
