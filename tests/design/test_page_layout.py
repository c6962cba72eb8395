"""The page at several sizes and in every state: nothing is cut off, and the focus is never lost."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from design.page import COSINE, CURVES, FOCUSED, PHONE, STABLE, STAGED, WIDE
from playwright.sync_api import expect

from plateau_jax import PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow


SIZES = [(1280, 800), (1024, 768), (900, 600), (720, 450), (390, 844)]


# Accessibility.


def check_with_axe(design):
    results = Axe().run(design.page)
    for violation in results.response["violations"]:
        pytest.fail(f"{violation['id']}: {violation['nodes']}")


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_axe_finds_no_violation_in_any_state(visit, size, scheme):
    with visit(size=size, color_scheme=scheme) as design:
        check_with_axe(design)

        design.do(("Warmup steps", "20000"))  # an invalid field
        check_with_axe(design)

        design.do(("Warmup steps", "500"), "+ Cooldown", "+ Continuation", "+ in steps")
        check_with_axe(design)

        design.do("Open…")
        expect(design.dialog).to_be_visible()
        check_with_axe(design)
        design.press("Escape")

        design.do("Edit Stages")
        check_with_axe(design)

        design.page.route("**/*", lambda route: route.abort())  # the server is stopped
        design.field("Start / peak").fill("0.5")
        expect(design.page.locator("body.offline")).to_be_attached()
        check_with_axe(design)


# The focus. The user presses these buttons one after the other.


def press(design, button, *, focus):
    """Press a button with the keyboard; check which control has the focus then."""
    design.button(button).focus()
    design.press("Enter")
    assert design.page.evaluate(FOCUSED).strip() == focus


def test_focus_after_plateaus_are_added_and_removed(undone):
    press(undone, "+ Plateau, in %", focus="Plateau 2 in %, start")
    press(undone, "+ in steps", focus="Plateau 1 in steps, start")
    press(undone, "Remove plateau 1 in %", focus="Remove plateau 1 in %")
    press(undone, "Remove plateau 1 in steps", focus="+ Plateau, in %")
    press(undone, "Remove plateau 1 in %", focus="+ Plateau, in %")
    press(undone, "+ Plateau, in %", focus="Plateau 1 in %, start")
    press(undone, "Undo", focus="Undo")


def test_focus_after_derived_curves_are_added_and_removed(undone):
    press(undone, "+ Cooldown", focus="Cooldown: First step")
    press(undone, "+ Continuation", focus="Continuation: Scale")
    press(undone, "Remove the continuation", focus="Remove the cooldown")
    press(undone, "Remove the cooldown", focus="+ Cooldown")


def test_focus_after_stages_change(undone):
    press(undone, "stages", focus="stages")
    press(undone, "Remove stage 3", focus="Remove stage 2")
    press(undone, "+ Stage", focus="Stage 2, steps")
    press(undone, "Move stage 2 up", focus="Stage 1, steps")
    press(undone, "Move stage 1 down", focus="Move stage 2 down")
    press(undone, "Remove stage 1", focus="Remove stage 1")
    press(undone, "Remove stage 1", focus="+ Stage")


def test_focus_after_the_table_changes(undone):
    press(undone, "Make reference: Stages", focus="reference")
    press(undone, "Hide Cosine", focus="Show Cosine")
    press(undone, "Use the best peak for Stable", focus="Use the best peak for Stable")
    press(undone, "Remove Cosine", focus="Remove Stable")
    press(undone, "Remove Stable", focus="a copy")


def test_focus_survives_undo_of_the_field(undone):
    undone.do("+ Plateau, in %")
    expect(undone.field("Plateau 2 in %, start")).to_be_focused()
    undone.press("Control+z")
    expect(undone.field("Plateau 1 in %, length")).to_be_focused()
    undone.handle("Plateau 1, place").focus()
    remove = undone.button("Remove plateau 1 in %")
    remove.evaluate("button => button.click()")
    undone.settle()
    assert undone.page.evaluate("document.activeElement.role") == "slider"


# Is the control with the focus on top, at its middle?
FOCUS_IS_SEEN = """
() => {
    const focused = document.activeElement;
    const { left, top, width, height } = focused.getBoundingClientRect();
    return focused.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}
"""
# Does the picture lie in the window?
PICTURE_IS_SEEN = """
() => {
    const card = document.querySelector("section.picture").getBoundingClientRect();
    return card.top >= -0.5 && card.bottom <= innerHeight + 0.5;
}
"""


def test_picture_and_focused_field_are_seen(visit):
    """Of a long form, in both directions. On a phone and if zoomed, the picture may scroll away."""
    plateaus = [(5 * number, 2) for number in range(18)]
    many = PlateauCurve(10_000, plateaus=plateaus)
    with visit({"Many": many}) as design:
        page = design.page
        for width, height in SIZES:
            design.resize(width, height)
            design.field("Total steps").focus()
            for key in ["Tab"] * 62 + ["Shift+Tab"] * 62:
                page.keyboard.press(key)
                focused = page.evaluate(FOCUSED)
                assert page.evaluate(FOCUS_IS_SEEN), focused
                if width >= 900:
                    assert page.evaluate(PICTURE_IS_SEEN), focused


# Sizes.

COOLED = STAGED.cooldown(4_000, 1_000)
FORMULAS = [(50_000, 1.0, "exponential"), (1_500_000, 0.25, "(1-x)^2.75"), (500, 0.1, "t^-0.5")]
KINDS = {
    **CURVES,
    "In steps": PlateauCurve(10_000, absolute_plateaus=[(8_000, 500)]),
    "Formulas": StagedCurve(FORMULAS, start=0.01),
    "Cooldown": COSINE.cooldown(6_000, 1_000),
    "Joined": COSINE.then(COOLED).then(STABLE, scale=0.5),
}
CUT_OFF = """
() => {
    const controls = ":is(a, button, input, select, summary, textarea)";

    function isCutOff(control) {
        const { left, right, top, bottom } = control.getBoundingClientRect();
        const card = control.closest(".card").getBoundingClientRect();
        if (left < card.left || right > card.right) return true;
        if (top < card.top || bottom > card.bottom) return true;
        let node = control.parentElement;
        while (node !== null) {
            const box = node.getBoundingClientRect();
            const isClipped = left < box.left - 0.5 || right > box.right + 0.5;
            const { overflowX } = getComputedStyle(node);
            if (isClipped && overflowX !== "visible") return true;
            node = node.parentElement;
        }
        return control.scrollWidth > control.clientWidth + 1;  // its text
    }

    const names = [];
    for (const control of document.querySelectorAll(`.card ${controls}`)) {
        if (control.checkVisibility() && isCutOff(control)) {
            names.push(control.ariaLabel || control.textContent);
        }
    }
    return names;
}
"""
TABLE_FITS = "table => table.scrollWidth <= table.parentElement.clientWidth"
DIALOG_FITS = "dialog => dialog.scrollWidth <= dialog.clientWidth"
# In one call: between two, the page may draw again, and a label that it has removed has no place.
TICKS = """
() => [...document.querySelectorAll("#picture .tick:not([text-anchor=end])")].map((label) => {
    const { x, width } = label.getBoundingClientRect();
    return [label.textContent, x, width];
})
"""
PAGE_FITS = "document.documentElement.scrollWidth <= innerWidth"


def test_no_control_is_cut_off(visit):
    with visit(KINDS) as design:
        design.do("Open…")
        for width, height in SIZES:
            design.resize(width, height)
            assert design.dialog.evaluate(DIALOG_FITS), width
        design.press("Escape")
        for kind in KINDS:
            design.do(f"Edit {kind}")
            for width, height in SIZES:
                design.resize(width, height)
                assert design.page.evaluate(CUT_OFF) == [], (kind, width)
                assert design.page.evaluate(PAGE_FITS), (kind, width)
                for table in design.page.locator("table").all():
                    assert table.evaluate(TABLE_FITS), (kind, width)


def test_segments_round_and_have_titles(undone):
    undone.do(("Peak learning rate", "0.000123457"))
    rows = undone.page.locator("#segments tbody tr")
    cells = rows.nth(1).locator("td")
    expect(cells).to_have_text(["500", "1\u202f449", "linear decay", "1.235e-4", "1.029e-4"])
    expect(cells.last).to_have_attribute("title", "0.000102881")


def test_ticks_are_whole_steps_apart(visit):
    with visit({"One": PlateauCurve(1)}, size=(320, 568)) as design:
        for total in (1, 2, 7, 12_345, 2**31 - 1):
            design.field("Total steps").fill(str(total))
            # The bound of two billion steps, which takes seconds, is not awaited.
            code = design.page.locator("#code")
            expect(code).to_contain_text(f"PlateauCurve(total_steps={total},")
            # At once: the bound, when it comes, draws the picture again.
            check_ticks(design.page.evaluate(TICKS))


def check_ticks(labels):
    """Check that labels of steps rise, and that they neither overlap nor leave the picture."""
    steps = []
    end = 0
    for text, left, width in labels:
        steps.append(int(text.replace("\u202f", "")))
        assert left >= end
        end = left + width + 4
    assert end <= 324
    assert steps == sorted(set(steps))
    assert len(steps) >= 2
