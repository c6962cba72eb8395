"""Undo, the focus, and other things that a user notices while editing."""

import pytest
from playwright.sync_api import Page, Route, expect
from support.design.design import served
from support.design.page import STABLE, curve_of_json, wait_until_settled

from plateau_jax import PlateauCurve
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.questions import MAX_CURVES

pytestmark = pytest.mark.slow


def test_undo_belongs_to_a_name_while_it_is_typed(page):
    page.get_by_label("Warmup steps").fill("700")
    name = page.get_by_role("textbox", name="Name of Stable")
    name.press("End")
    page.keyboard.type("r")
    for key, value in (("Control+z", "Stable"), ("Control+Shift+z", "Stabler"), ("Control+z", "Stable")):
        page.keyboard.press(key)
        expect(name).to_have_value(value)
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 700})
    page.keyboard.press("Control+z")  # the focus is elsewhere
    assert curve_of_json(page) == STABLE


def test_answers_keep_a_name_that_is_typed(page):
    """An answer changes the table, where the name is typed. The browser's undo must survive that."""
    held: list[Route] = []

    def hold_comparisons(route: Route) -> None:
        if '"runs":[]' in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/page", hold_comparisons)
    with page.expect_request(lambda request: '"runs":[]' in (request.post_data or "")):
        page.get_by_label("Warmup steps").fill("700")
    name = page.get_by_role("textbox", name="Name of Stable")
    name.press("Home")
    page.keyboard.type("Un")
    held[0].continue_()
    wait_until_settled(page)
    expect(name).to_be_focused()
    expect(name).to_have_value("UnStable")
    page.keyboard.press("Control+z")
    expect(name).to_have_value("Stable")


NAME_OF_FOCUSED = "document.activeElement.ariaLabel ?? document.activeElement.textContent"

# What the user presses one after the other, and where the focus is then.
PRESSED = {
    "plateau added and removed": [
        ("+ Plateau, in %", "Plateau 2 in %, start"),
        ("+ in steps", "Plateau 1 in steps, start"),
        ("Remove plateau 1 in %", "Remove plateau 1 in %"),
        ("Remove plateau 1 in steps", "+ Plateau, in %"),
        ("Remove plateau 1 in %", "+ Plateau, in %"),
        ("+ Plateau, in %", "Plateau 1 in %, start"),
        ("Undo", "Undo"),
    ],
    "derived curves": [
        ("+ Cooldown", "Cooldown: First step"),
        ("+ Continuation", "Continuation: Scale"),
        ("Remove the continuation", "Remove the cooldown"),
        ("Remove the cooldown", "+ Cooldown"),
    ],
    "stages": [
        ("stages", "stages"),
        ("Remove stage 3", "Remove stage 2"),
        ("+ Stage", "Stage 2, steps"),
        ("Move stage 2 up", "Stage 1, steps"),
        ("Remove stage 1", "Remove stage 1"),
        ("Remove stage 1", "+ Stage"),
    ],
    "undo and redo": [("a copy", "a copy"), ("Undo", "Redo"), ("Redo", "Undo")],
    "curves": [
        ("Make reference: Stages", "reference"),
        ("Hide Cosine", "Show Cosine"),
        ("Use the best peak for Stable", "Use the best peak for Stable"),
        ("Remove Cosine", "Remove Stable"),
        ("Remove Stable", "a copy"),
    ],
}


@pytest.mark.parametrize("pressed", PRESSED.values(), ids=PRESSED)
def test_focus_moves_to_a_neighbour(page, pressed):
    for name, expected in pressed:
        page.get_by_role("button", name=name, exact=True).last.focus()
        page.keyboard.press("Enter")
        wait_until_settled(page)
        assert page.evaluate(NAME_OF_FOCUSED).strip() == expected, name


def test_focus_survives_undo_of_the_field(page):
    page.get_by_role("button", name="+ Plateau, in %").click()
    expect(page.get_by_label("Plateau 2 in %, start")).to_be_focused()
    page.keyboard.press("Control+z")
    wait_until_settled(page)
    expect(page.get_by_label("Plateau 1 in %, length")).to_be_focused()
    page.get_by_role("slider", name="Plateau 1, place").focus()
    page.get_by_role("button", name="Remove plateau 1 in %").evaluate("button => button.click()")
    wait_until_settled(page)
    assert page.evaluate("document.activeElement.role") == "slider"


def test_focus_survives_the_last_curve(page: Page):
    """The buttons that add a curve are then disabled."""
    for _ in range(MAX_CURVES - 4):
        page.get_by_role("button", name="a copy", exact=True).click()
        wait_until_settled(page)
    page.get_by_role("button", name="a copy", exact=True).press("Enter")
    wait_until_settled(page)
    expect(page.get_by_role("radio", name="Edit Stable (10)")).to_be_focused()


# The control with the focus: does it lie in the window, and the picture too, and the one not below the other?
SEEN = """
() => {
    const focused = document.activeElement, picture = document.querySelector("section.picture");
    const [inner, card] = [focused, picture].map((node) => node.getBoundingClientRect());
    const isInside = ({ top, bottom }) => top >= -0.5 && bottom <= innerHeight + 0.5;
    const isApart = inner.bottom <= card.top + 0.5 || inner.top >= card.bottom - 0.5;
    return {
        name: focused.ariaLabel ?? focused.dataset.path ?? focused.id ?? focused.textContent,
        isField: focused.closest("form") !== null,
        isSeen: picture.contains(focused) || (isInside(inner) && (isApart || inner.left >= card.right)),
        isPictureSeen: isInside(card),
    };
}
"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (900, 600), (720, 450), (390, 844)])
def test_picture_and_focused_field_are_seen(browser, width, height):
    """Of a long form, forwards and backwards. On a phone and if zoomed, the picture may scroll away."""
    many = PlateauCurve(10_000, plateaus=[(5 * number, 2) for number in range(18)])
    with served(initial_curves([("Many", many)], 3e-4)) as server:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(server.address)
        wait_until_settled(page)
        page.get_by_role("button", name="Open a log…").focus()
        fields: set[str] = set()
        for key in ("Tab", "Shift+Tab"):
            for _ in range(110):
                page.keyboard.press(key)
                seen = page.evaluate(SEEN)
                if seen["name"] in ("code", ""):  # higher than the space next to the picture
                    continue
                assert seen["isSeen"], seen
                if seen["isField"]:
                    fields.add(seen["name"])
                    assert seen["isPictureSeen"] or width < 900, seen
        assert "Remove plateau 18 in %" in fields
        page.close()
