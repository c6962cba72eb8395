"""The page at several sizes and in every state: nothing is cut off or hidden, and the focus is never lost."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.design.logs import LOSSES, STEPS
from support.design.page import COSINE, CURVES, FOCUSED, PHONE, STABLE, STAGED, WIDE, DesignPage
from support.forecasts.law_runs import csv_of

from plateau_jax import Curve, PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow

SIZES = [(1440, 900), (1024, 768), (900, 600), (720, 450), (390, 844)]


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


def test_tab_stops_in_one_row_of_the_table(design):
    design.page.get_by_role("radio", name="Edit Stable").focus()
    reached = []
    for _ in range(6):
        design.page.keyboard.press("Tab")
        reached.append(design.page.evaluate(FOCUSED))
    names = ("Name of", "Use the best peak for", "Make reference:", "Hide", "Remove")
    assert reached == [*(f"{name} Stable" for name in names), "a copy"]
    design.press("Shift+Tab", "Shift+Tab", "Enter")
    expect(design.button("Show Stable")).to_be_focused()


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


# The control with the focus: does it lie in the window, and the picture too, and the one not below the other?
SEEN = """
() => {
    const focused = document.activeElement, picture = document.querySelector("section.picture");
    const [inner, card] = [focused, picture].map((node) => node.getBoundingClientRect());
    const isInside = ({ top, bottom }) => top >= -0.5 && bottom <= innerHeight + 0.5;
    const isApart = inner.bottom <= card.top + 0.5 || inner.top >= card.bottom - 0.5;
    return {
        name: focused.ariaLabel ?? focused.dataset.path ?? focused.id,
        isField: focused.closest("form") !== null,
        isSeen: picture.contains(focused) || (isInside(inner) && (isApart || inner.left >= card.right)),
        isPictureSeen: isInside(card),
    };
}
"""


# Controls that Tab reaches, of each kind.
CONTROLS = {
    "copy", "Peak learning rate", "Plateau 1, place", "Step at which to read learning rates", "Edit Many",
    "Decay shape", "curve/cooldown", "Remove plateau 18 in %",
}  # fmt: skip


def test_picture_and_focused_field_are_seen(visit):
    """Of a long form, forwards and backwards. On a phone and if zoomed, the picture may scroll away."""
    many = PlateauCurve(10_000, plateaus=[(5 * number, 2) for number in range(18)])
    with visit({"Many": many}) as design:
        for width, height in SIZES:
            design.resize(width, height)
            design.button("Open a log…").focus()
            reached: set[str] = set()
            for key in ("Tab", "Shift+Tab"):
                for _ in range(110):
                    design.page.keyboard.press(key)
                    seen = design.page.evaluate(SEEN)
                    reached.add(seen["name"])
                    if seen["name"] in ("code", ""):  # higher than the space next to the picture
                        continue
                    assert seen["isSeen"], seen
                    assert not seen["isField"] or seen["isPictureSeen"] or width < 900, seen
            assert reached >= CONTROLS, width


KINDS: dict[str, Curve] = {
    **CURVES,
    "Absolute plateau": PlateauCurve(10_000, absolute_plateaus=[(8_000, 500)]),
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


def test_no_control_is_cut_off(visit):
    with visit(KINDS) as design:
        for kind in KINDS:
            design.do(f"Edit {kind}")
            for width, height in SIZES:
                design.resize(width, height)
                assert design.page.evaluate(CUT_OFF) == [], (kind, width)
                assert design.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_segments_fit_into_their_card(design):
    design.do(("Peak learning rate", "0.000123457"))
    last = design.page.locator("#segments tbody tr").nth(1).locator("td").last
    expect(last).to_have_text("1.029e-4")
    expect(last).to_have_attribute("title", "0.000102881")
    for size in SIZES:
        design.resize(*size)
        is_cut_off = "table => table.scrollWidth > table.parentElement.clientWidth"
        assert not design.page.locator("#segments").evaluate(is_cut_off), size


TICKS = """
() => [...document.querySelectorAll("#picture .tick:not([text-anchor=end])")].map((label) => {
    const { left, right } = label.getBoundingClientRect();
    return [label.textContent, left, right];
})
"""


def test_ticks_are_whole_steps_apart(visit):
    with visit({"One": PlateauCurve(1), "Two": PlateauCurve(1)}) as design:
        for total in (1, 2, 3, 5, 7, 11, 99, 12_345, 1_000_000, 2**31 - 1):
            design.field("Total steps").fill(str(total))
            # The bound of two billion steps, which takes seconds, is not awaited.
            expect(design.page.locator("#code")).to_contain_text(f"PlateauCurve({total})")
            for width, height in [*SIZES, (320, 568)]:
                design.resize(width, height)
                # The picture is drawn again in the next frame.
                design.page.evaluate(
                    "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
                )
                labels = sorted(design.page.evaluate(TICKS), key=lambda label: label[1])
                steps = [int(text.replace("\u202f", "")) for text, *_ in labels]
                assert len(steps) >= 2, (total, steps)
                assert steps == sorted(set(steps)), total
                ends, begins = [right for *_, right in labels], [left for _, left, _ in labels]
                assert all(end + 4 < begin for end, begin in zip(ends, begins[1:], strict=False)), total
                assert begins[0] >= 0
                assert ends[-1] <= width


TOPS = """
() => [...document.querySelectorAll(".column:first-child > .card")]
    .map((card) => card.getBoundingClientRect().top)
"""


def test_code_is_seen_at_first_sight_and_cards_come_in_order(visit):
    for width, height in [(1440, 900), (1024, 768), (720, 900), (390, 844)]:
        with visit(size=(width, height)) as design:
            assert design.page.locator("#code").bounding_box()["y"] + 60 < height
            design.resize(390 if width > 900 else 1200, height)
            design.resize(width, height)
            expect(design.page.locator(".column:first-child > .controls")).to_have_count(int(width < 900))
            tops = design.page.evaluate(TOPS)
            assert tops == sorted(tops)


PLACES = """[...document.querySelectorAll("#controls :is(input, select)")]
    .filter((field) => field.checkVisibility()).map((field) => field.getBoundingClientRect().y)"""


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_fields_do_not_move_while_one_is_typed(visit, size):
    with visit(size=size) as design:
        before = design.page.evaluate(PLACES)
        for label, text, moved in (
            ("Total steps", "0", None),
            ("Final LR / peak", "2", None),
            ("Plateau 1 in %, length", "many", None),
            ("Warmup steps", "-1", 3),  # a message of two lines moves the fields below
        ):
            design.do((label, text))
            expect(design.field(label)).to_have_attribute("aria-invalid", "true")
            scrolled = design.page.evaluate(PLACES)
            shift = scrolled[0] - before[0]  # to the field, as by the browser
            assert scrolled[:moved] == pytest.approx([place + shift for place in before[:moved]])
            design.press("Control+z")


def style(design: DesignPage, selector: str, *names: str) -> list[str]:
    """Return properties of the first element, as the browser computes them."""
    script = "(node, names) => names.map((name) => getComputedStyle(node)[name])"
    return design.page.locator(selector).first.evaluate(script, list(names))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_show_tab_and_focus(visit, scheme):
    chosen, other = "#formats label:has(:checked)", "#formats label:not(:has(:checked))"
    with visit(color_scheme=scheme, forced_colors="active") as design:
        look = "borderColor", "color"
        assert style(design, chosen, *look) != style(design, other, *look)
        before = style(design, other, *look)
        design.page.locator(other).first.click()
        assert style(design, chosen, *look) != before
        ring = "[aria-label='Plateau 1, end'] .ring"
        assert style(design, ring, "stroke") == ["none"]
        design.handle("Plateau 1, end").focus()
        design.press("ArrowRight")  # the focus is visible after a key
        (color,) = style(design, ring, "stroke")
        assert re.match(r"rgb", color)
        assert style(design, ".picture", "backgroundColor") != [color]
        design.field("Name of Stable").focus()
        assert style(design, "[aria-label='Name of Stable']", "outlineStyle") != ["none"]
