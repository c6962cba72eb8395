"""The page at several sizes and in every state: nothing is cut off or hidden, and the focus is never lost."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.design.page import COSINE, CURVES, FOCUSED, PHONE, STABLE, STAGED, WIDE
from support.forecasts.logs import LOSSES, STEPS, csv_of

from plateau_jax import Curve, PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow

SIZES = [(1280, 800), (1024, 768), (900, 600), (720, 450), (390, 844)]


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_axe_finds_no_violation_in_any_state(visit, size, scheme):
    with visit(size=size, color_scheme=scheme) as design:

        def check(state: str) -> None:
            violations = Axe().run(design.page).response["violations"]
            assert [(violation["id"], violation["nodes"]) for violation in violations] == [], state

        check("start")
        design.do(("Warmup steps", "20000"))
        check("an invalid field")
        design.do(("Warmup steps", "500"), "+ Cooldown", "+ Continuation", "+ in steps")
        check("derived curves")
        for name in ("Open…", "Open a log…"):
            design.do(name)
            expect(design.dialog).to_be_visible()
            check(name)
            design.press("Escape")
        design.do("Edit Stages")
        design.choose(run=csv_of(step=10 * STEPS, loss=LOSSES))
        design.set("Trained with", "Cosine")
        expect(design.dialog.get_by_role("button", name="Use this log")).to_be_enabled()
        check("stages, and a log")
        design.accept()
        expect(design.page.locator("[data-figure=forecast] b").first).to_be_visible()
        check("forecasts")
        design.page.route("**/*", lambda route: route.abort())
        design.field("Start / peak").fill("0.5")
        expect(design.page.locator("body.offline")).to_be_attached()
        check("without a server")


# Buttons that the user presses one after the other, and where the focus is then.
PRESSED = [
    [("+ Plateau, in %", "Plateau 2 in %, start"), ("+ in steps", "Plateau 1 in steps, start"),
     ("Remove plateau 1 in %", "Remove plateau 1 in %"), ("Remove plateau 1 in steps", "+ Plateau, in %"),
     ("Remove plateau 1 in %", "+ Plateau, in %"), ("+ Plateau, in %", "Plateau 1 in %, start"),
     ("Undo", "Undo")],
    [("+ Cooldown", "Cooldown: First step"), ("+ Continuation", "Continuation: Scale"),
     ("Remove the continuation", "Remove the cooldown"), ("Remove the cooldown", "+ Cooldown")],
    [("stages", "stages"), ("Remove stage 3", "Remove stage 2"), ("+ Stage", "Stage 2, steps"),
     ("Move stage 2 up", "Stage 1, steps"), ("Move stage 1 down", "Move stage 2 down"),
     ("Remove stage 1", "Remove stage 1"), ("Remove stage 1", "+ Stage")],
    [("a copy", "a copy"), ("Undo", "Redo"), ("Redo", "Undo")],
    [("Make reference: Stages", "reference"), ("Hide Cosine", "Show Cosine"),
     ("Use the best peak for Stable", "Use the best peak for Stable"), ("Remove Cosine", "Remove Stable"),
     ("Remove Stable", "a copy")],
]  # fmt: skip


def test_focus_moves_to_a_neighbour(design):
    for pressed in PRESSED:
        for name, expected in pressed:
            design.button(name).focus()
            design.press("Enter")
            assert design.page.evaluate(FOCUSED).strip() == expected, name
        design.undo_all()
        design.do("Edit Stable")


def test_focus_survives_undo_of_the_field(design):
    design.do("+ Plateau, in %")
    expect(design.field("Plateau 2 in %, start")).to_be_focused()
    design.press("Control+z")
    expect(design.field("Plateau 1 in %, length")).to_be_focused()
    design.handle("Plateau 1, place").focus()
    design.button("Remove plateau 1 in %").evaluate("button => button.click()")
    design.settle()
    assert design.page.evaluate("document.activeElement.role") == "slider"


# Is the control with the focus on top, at its middle? And does the picture lie in the window?
SEEN = """
() => {
    const focused = document.activeElement, picture = document.querySelector("section.picture");
    const { left, top, width, height } = focused.getBoundingClientRect();
    const card = picture.getBoundingClientRect();
    return [
        focused.contains(document.elementFromPoint(left + width / 2, top + height / 2)),
        card.top >= -0.5 && card.bottom <= innerHeight + 0.5,
    ];
}
"""


def test_picture_and_focused_field_are_seen(visit):
    """Of a long form, forwards and backwards. On a phone and if zoomed, the picture may scroll away."""
    many = PlateauCurve(10_000, plateaus=[(5 * number, 2) for number in range(18)])
    with visit({"Many": many}) as design:
        for width, height in SIZES:
            design.resize(width, height)
            design.field("Total steps").focus()
            for key in ("Tab", "Shift+Tab"):
                for _ in range(62):
                    design.page.keyboard.press(key)
                    is_field_seen, is_picture_seen = design.page.evaluate(SEEN)
                    name = design.page.evaluate(FOCUSED)
                    assert is_field_seen, (name, width)
                    assert is_picture_seen or width < 900, (name, width)


KINDS: dict[str, Curve] = {
    **CURVES,
    "In steps": PlateauCurve(10_000, absolute_plateaus=[(8_000, 500)]),
    "Formulas": StagedCurve(
        [(50_000, 1.0, "exponential"), (1_500_000, 0.25, "(1-x)^2.75"), (500, 0.1, "t^-0.5")], start=0.01
    ),
    "Cooldown": COSINE.cooldown(6_000, 1_000),
    "Joined": COSINE.then(STAGED.cooldown(4_000, 1_000)).then(STABLE, scale=0.5),
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
FIT = "tables => tables.every((table) => table.scrollWidth <= table.parentElement.clientWidth)"


def test_no_control_is_cut_off(visit):
    """With forecasts, too, and in the dialog about a log with a long name."""
    with visit(KINDS) as design:
        design.choose(**{"run_" * 30: csv_of(step=10 * STEPS, loss=LOSSES)})
        design.set("Trained with", "Cosine")
        for width, height in SIZES:
            design.resize(width, height)
            assert design.dialog.evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth"), width
        design.accept()
        for kind in KINDS:
            design.do(f"Edit {kind}")
            for width, height in SIZES:
                design.resize(width, height)
                assert design.page.evaluate(CUT_OFF) == [], (kind, width)
                assert design.page.locator("table").evaluate_all(FIT), (kind, width)
                assert design.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_segments_round_and_have_titles(design):
    design.do(("Peak learning rate", "0.000123457"))
    cells = design.page.locator("#segments tbody tr").nth(1).locator("td")
    expect(cells).to_have_text(["500", "1\u202f449", "linear decay", "1.235e-4", "1.029e-4"])
    expect(cells.last).to_have_attribute("title", "0.000102881")


def test_ticks_are_whole_steps_apart(visit):
    with visit({"One": PlateauCurve(1)}, size=(320, 568)) as design:
        for total in (1, 2, 7, 12_345, 2**31 - 1):
            design.field("Total steps").fill(str(total))
            # The bound of two billion steps, which takes seconds, is not awaited.
            expect(design.page.locator("#code")).to_contain_text(f"PlateauCurve({total})")
            labels = design.page.locator("#picture .tick:not([text-anchor=end])").all()
            steps = [int(label.text_content().replace("\u202f", "")) for label in labels]
            assert steps == sorted(set(steps))
            assert len(steps) >= 2
            boxes = [label.bounding_box() for label in labels]
            ends = [0, *(box["x"] + box["width"] + 4 for box in boxes)]
            assert all(end <= box["x"] for end, box in zip(ends, boxes, strict=False)), total
            assert ends[-1] <= 324


def test_code_is_seen_at_first_sight(visit):
    """And below 900 pixels, the fields move to the first column."""
    for width, height in [(1440, 900), (1024, 768), (720, 900), (390, 844)]:
        with visit(size=(width, height)) as design:
            assert design.page.locator("#code").bounding_box()["y"] + 60 < height
            design.resize(390 if width > 900 else 1200, height)
            design.resize(width, height)
            expect(design.page.locator(".column:first-child > .controls")).to_have_count(int(width < 900))


def test_forced_colours_show_tab_and_focus(visit):
    with visit(forced_colors="active") as design:
        colours = "labels => labels.map((label) => getComputedStyle(label).borderColor)"
        chosen, *others = design.page.locator("#formats label").evaluate_all(colours)
        assert chosen not in others
        ring = design.handle("Plateau 1, end").locator(".ring")
        expect(ring).to_have_css("stroke", "none")
        design.handle("Plateau 1, end").focus()
        design.press("ArrowRight")  # the focus is visible after a key
        expect(ring).not_to_have_css("stroke", "none")
        design.field("Name of Stable").focus()
        expect(design.field("Name of Stable")).not_to_have_css("outline-style", "none")
