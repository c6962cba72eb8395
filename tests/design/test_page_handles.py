"""Handles on the picture, dragged and moved with keys."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import expect
from support.design.page import (
    COSINE,
    PEAK,
    STABLE,
    STAGED,
    assert_shown,
    at_both_sizes,
    axes_in_picture,
    centre,
    curve_of_json,
    drag,
    handle,
    position_in_picture,
    wait_until_settled,
)

from plateau_jax import PlateauCurve
from plateau_jax.drawing.sampling import shaded_spans

pytestmark = pytest.mark.slow


def place(curve: PlateauCurve) -> tuple[int, int]:
    """Return the first step of the only plateau, and the first step after it."""
    ((first, after),) = [
        (begin, after) for name, begin, after in shaded_spans(curve.rows) if name == "plateau"
    ]
    return first, after


DRAGGED = [
    ("Plateau 1, end", 40, 0, lambda curve: place(curve)[0] == 1450 and place(curve)[1] > 5250),
    ("Plateau 1, start", -10, 0, lambda curve: place(curve)[0] < 1450 and place(curve)[1] == 5250),
    ("Plateau 1, place", 40, 0, lambda curve: place(curve)[0] > 1450 and np.ptp(place(curve)) == 3800),
    ("Warmup, end", 30, 0, lambda curve: curve.warmup_steps > 500),
    ("Initial learning rate", 0, -40, lambda curve: curve.init_lr_ratio > 0),
    ("Final learning rate", 0, -40, lambda curve: curve.min_lr_ratio > 0 and curve.total_steps == 10_000),
    ("End of the curve", -40, 0, lambda curve: curve.total_steps < 10_000 and curve.min_lr_ratio == 0),
]


@pytest.mark.parametrize(
    ("name", "right", "down", "is_expected"), DRAGGED, ids=[name for name, *_ in DRAGGED]
)
def test_json_follows_dragged_handles(page, name, right, down, is_expected):
    before = position_in_picture(page, name)
    drag(page, name, right, down)
    curve = curve_of_json(page)
    assert is_expected(curve)
    assert_shown(page, curve)
    if name != "End of the curve":  # which changes the axes
        after = position_in_picture(page, name)
        # Values snap to multiples of a unit near the pointer; a plateau that moves also changes its level.
        assert after[0] - before[0] == pytest.approx(right, abs=4)
        if down:
            assert after[1] - before[1] == pytest.approx(down, abs=3)


def test_levels_of_a_continuation_follow_the_pointer(page):
    page.get_by_role("button", name="+ Continuation").click()
    wait_until_settled(page)
    name = "Continuation, final learning rate"
    before = position_in_picture(page, name)
    drag(page, name, 0, -40)
    assert position_in_picture(page, name)[1] - before[1] == pytest.approx(-40, abs=3)
    drag(page, name, 0, 20)
    assert position_in_picture(page, name)[1] - before[1] == pytest.approx(-20, abs=3)


def test_peak_can_be_dragged(page):
    drag(page, "Peak learning rate", 0, 40)
    peak = float(page.get_by_role("textbox", name="Peak learning rate").input_value())
    assert 1e-4 < peak < PEAK
    assert f"peak_value={peak!r}" in page.locator("#code").text_content()
    assert_shown(page, STABLE)


def test_plateau_can_be_dragged_too_far_and_back(page):
    """A drag counts from where it began, even after the value reached its limit."""
    x, y = centre(handle(page, "Plateau 1, end"))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 2000, y, steps=4)
    wait_until_settled(page)
    page.mouse.move(x, y, steps=4)
    page.mouse.up()
    assert curve_of_json(page) == STABLE
    expect(page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)


def test_drag_is_one_undo_step(page):
    undo, redo = (page.get_by_role("button", name=name) for name in ("Undo", "Redo"))
    expect(undo).to_be_disabled()
    drag(page, "Plateau 1, end", 40, 0)
    first = curve_of_json(page)
    drag(page, "Plateau 1, place", 20, 0)
    second = curve_of_json(page)
    undo.click()
    assert curve_of_json(page) == first
    page.keyboard.press("Control+z")
    assert curve_of_json(page) == STABLE
    expect(undo).to_be_disabled()
    page.keyboard.press("Control+Shift+z")
    assert curve_of_json(page) == first
    redo.click()
    assert curve_of_json(page) == second
    expect(redo).to_be_disabled()
    assert_shown(page, second)


KEYS = [
    ("Warmup, end", "ArrowRight", {"warmup_steps": 600}),
    ("Warmup, end", "Shift+ArrowLeft", {"warmup_steps": 490}),
    ("Warmup, end", "PageUp", {"warmup_steps": 1500}),
    ("Warmup, end", "Home", {"warmup_steps": 0}),
    ("Plateau 1, end", "ArrowRight", {"plateaus": (), "absolute_plateaus": [(1450, 3850)]}),
    ("Plateau 1, end", "PageDown", {"plateaus": [(10, 30)]}),
    ("Plateau 1, start", "ArrowLeft", {"plateaus": (), "absolute_plateaus": [(1400, 3850)]}),
    ("Plateau 1, place", "Shift+ArrowUp", {"plateaus": (), "absolute_plateaus": [(1460, 3800)]}),
    ("Plateau 1, place", "End", {"plateaus": [(60, 40)]}),
    ("Final learning rate", "ArrowUp", {"min_lr_ratio": 0.01}),
    ("Final learning rate", "PageUp", {"min_lr_ratio": 0.1}),
    ("End of the curve", "ArrowDown", {"total_steps": 9900}),
]


@pytest.mark.parametrize(("name", "key", "changed"), KEYS, ids=[f"{name} {key}" for name, key, _ in KEYS])
def test_keys_move_handles(page, name, key, changed):
    slider = handle(page, name)
    slider.focus()
    page.keyboard.press(key)
    expected = PlateauCurve(**{**STABLE.to_dict(), **changed})
    assert curve_of_json(page) == expected
    assert_shown(page, expected)
    low, now, high = (float(slider.get_attribute(f"aria-value{part}")) for part in ("min", "now", "max"))
    assert low <= now <= high
    assert slider.get_attribute("aria-valuetext")


def test_successive_keys_add_up(page):
    handle(page, "Plateau 1, end").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        wait_until_settled(page)
    expect(handle(page, "Plateau 1, end")).to_be_focused()
    assert place(curve_of_json(page)) == (1450, 5500)


def test_keys_before_an_answer_are_not_lost(page):
    page.get_by_label("Final LR / peak").fill("0.25")
    handle(page, "Plateau 1, end").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert curve_of_json(page) == PlateauCurve(
        **{**STABLE.to_dict(), "min_lr_ratio": 0.25, "plateaus": (), "absolute_plateaus": [(1450, 4350)]}
    )


def test_pointer_reads_the_learning_rates(page):
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"])
    wait_until_settled(page)
    readout = page.locator("#readout")
    expect(readout).to_contain_text("Stable")

    def read_values() -> list[float]:
        numbers = re.sub(r"(?<=\d)\u202f", "", readout.inner_text())
        *values, step = map(float, re.findall(r"(?:step|Cosine|Stages|Stable)\s+([\d.e-]+)", numbers))
        for curve, value in zip((COSINE, STAGED, STABLE), values, strict=True):
            assert value == pytest.approx(PEAK * curve(int(step)), rel=1e-3, abs=1e-12)
        return [step, *values]

    step = read_values()[0]
    reader = handle(page, "Step at which to read learning rates")
    reader.focus()
    page.keyboard.press("ArrowRight")
    wait_until_settled(page)
    assert read_values()[0] == step + 100
    assert f"step {step + 100:.0f}: Cosine" in reader.get_attribute("aria-valuetext")


def point_on_curve(page, curve: Callable[[int], float], step: int) -> tuple[float, float]:
    """Return the window's coordinates of a point on a curve that the picture shows."""
    page.locator("#picture").scroll_into_view_if_needed()
    box = page.locator("#picture").bounding_box()
    (left, bottom), top = axes_in_picture(page)
    right = position_in_picture(page, "End of the curve")[0]
    x = left + (right - left) * step / 10_000
    return box["x"] + x, box["y"] + bottom + (top - bottom) * curve(step)


def test_a_click_on_a_curve_chooses_it(page):
    chosen = page.locator("#curves").get_by_role("radio", checked=True)
    page.mouse.click(*point_on_curve(page, COSINE, 6_300))
    expect(chosen).to_have_accessible_name("Edit Cosine")
    expect(chosen).to_be_focused()
    assert curve_of_json(page) == COSINE
    page.mouse.click(*point_on_curve(page, lambda step: 0.9, 9_500))  # no curve is near
    expect(chosen).to_have_accessible_name("Edit Cosine")
    x, y = point_on_curve(page, STAGED, 4_000)
    page.mouse.click(x, y + 6)  # near the line is enough
    expect(chosen).to_have_accessible_name("Edit Stages")


def test_a_drag_that_ends_on_a_curve_chooses_nothing(page):
    x, y = point_on_curve(page, STAGED, 4_000)
    place = centre(handle(page, "Plateau 1, end"))
    drag(page, "Plateau 1, end", x - place[0], y - place[1])
    page.mouse.move(x, y + 60)
    page.mouse.down()
    page.mouse.move(*point_on_curve(page, COSINE, 6_300), steps=3)  # reads the learning rates
    page.mouse.up()
    expect(page.locator("#curves").get_by_role("radio", checked=True)).to_have_accessible_name("Edit Stable")


def test_a_click_on_a_row_chooses_its_curve(page):
    chosen = page.locator("#curves").get_by_role("radio", checked=True)
    page.locator("tr[data-id='2'] [data-figure=bound]").click()
    expect(chosen).to_have_accessible_name("Edit Stages")
    expect(chosen).to_be_focused()
    page.get_by_role("textbox", name="Name of Cosine").click()
    expect(chosen).to_have_accessible_name("Edit Cosine")
    expect(page.get_by_role("textbox", name="Name of Cosine")).to_be_focused()
    page.get_by_role("button", name="Hide Stages").click()
    expect(chosen).to_have_accessible_name("Edit Cosine")
    page.locator("tr[data-id='2'] [data-figure=bound]").click()
    assert curve_of_json(page) == STAGED
    expect(page.locator("polyline")).to_have_count(3)


@at_both_sizes
@pytest.mark.parametrize(
    ("name", "right", "down"), [*(row[:3] for row in DRAGGED), ("Peak learning rate", 0, 40)]
)
def test_value_is_shown_at_a_moving_handle(page, name, right, down):
    label, slider = page.locator("#picture .value:visible"), handle(page, name)

    def assert_label_shows_the_value() -> None:
        wait_until_settled(page)
        expect(label).to_have_text(slider.get_attribute("aria-valuetext"))
        inner, outer, knob = (
            place.bounding_box() for place in (label, page.locator("#picture"), slider.locator(".mark"))
        )
        for start, size in (("x", "width"), ("y", "height")):
            assert outer[start] <= inner[start] <= outer[start] + outer[size] - inner[size]
        is_above = inner["y"] + inner["height"] <= knob["y"]
        assert is_above or inner["y"] >= knob["y"] + knob["height"]

    expect(label).to_have_count(0)
    x, y = centre(slider)
    page.mouse.move(x, y)
    page.mouse.down()
    for times in (1, -20, 20):
        page.mouse.move(x + times * right, y + times * down, steps=2)
        assert_label_shows_the_value()
    page.mouse.up()
    expect(label).to_have_count(0)
    page.keyboard.press("Tab")
    slider.focus()
    for key in ("ArrowRight", "PageUp", "Home"):
        page.keyboard.press(key)
        assert_label_shows_the_value()
    page.get_by_label("Total steps").focus()
    expect(label).to_have_count(0)


@pytest.mark.parametrize("name", ["Plateau 1, end", "Step at which to read learning rates"])
def test_touch_drags_a_handle_to_the_end(browser, server, name):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.address)
    wait_until_settled(page)
    handle(page, name).press("PageUp")  # away from other handles
    wait_until_settled(page)
    box = handle(page, name).locator(".mark, path").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = context.new_cdp_session(page)

    def send(kind, *points):
        touch.send(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x in points]}
        )

    before = position_in_picture(page, name)[0]
    send("touchStart", x)
    for moved in range(1, 16):
        send("touchMove", x + 4 * moved)
    send("touchEnd")
    wait_until_settled(page)
    assert position_in_picture(page, name)[0] - before == pytest.approx(60, abs=3)
    context.close()


def test_dragging_rounds_to_a_hundredth_of_the_run(page):
    drag(page, "Warmup, end", 33, 0)
    assert curve_of_json(page).warmup_steps % 100 == 0
    page.keyboard.down("Shift")
    drag(page, "Warmup, end", 20.5, 0)
    page.keyboard.up("Shift")
    assert curve_of_json(page).warmup_steps % 100 != 0


def test_stage_that_holds_can_be_dragged_up(page):
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name="Move stage 3 up").click()
    wait_until_settled(page)
    assert position_in_picture(page, "Stage 3, level")[1] == pytest.approx(
        axes_in_picture(page)[0][1], abs=0.1
    )
    drag(page, "Stage 3, level", 0, -40)
    curve = curve_of_json(page)
    assert curve.total_steps == 10_000
    assert curve.stages[2].to > 0.1
    assert_shown(page, curve)


def test_dragging_rounds_plateaus_in_percent_to_steps(page):
    drag(page, "Plateau 1, end", 47, 0)
    assert place(curve_of_json(page))[1] % 100 == 0
    drag(page, "Plateau 1, place", 31, 0)
    assert place(curve_of_json(page))[0] % 100 == 0


def test_escape_cancels_a_drag(page):
    x, y = centre(handle(page, "Warmup, end"))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=5)
    page.keyboard.press("Escape")
    page.mouse.move(x + 90, y, steps=3)
    page.mouse.up()
    assert curve_of_json(page) == STABLE
