"""Handles on the picture, dragged and moved with keys; what the pointer reads and chooses there."""

import re
from dataclasses import replace

import pytest
from design.page import COSINE, CURVES, PEAK, PHONE, STABLE, STAGED
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


# Dragged handles: a drag is one step of undo, and values snap to a hundredth of the run.


def check_drag(design, name, *, right=0, down=0):
    """Drag a handle of STABLE this far, and undo that; return the curve."""
    before_x, before_y = design.position(name)
    design.drag(name, right, down)
    curve = design.curve
    design.check(curve)
    if name != "End of the curve":  # which changes the axes
        after_x, after_y = design.position(name)
        # Values snap to a unit near the pointer; a plateau that moves also changes its level.
        assert after_x - before_x == pytest.approx(right, abs=4)
        if down:
            assert after_y - before_y == pytest.approx(down, abs=3)
    design.do("Undo")
    expect(design.button("Undo")).to_be_disabled()
    assert design.curve == STABLE
    design.do("Redo")
    assert design.curve == curve
    return curve


def test_end_of_the_plateau_follows_its_handle(undone):
    curve = check_drag(undone, "Plateau 1, end", right=47)
    ((begin, length),) = curve.absolute_plateaus
    assert begin == 1450
    assert length > 3800
    assert (begin + length) % 100 == 0


def test_final_learning_rate_follows_its_handle(undone):
    curve = check_drag(undone, "Final learning rate", down=-40)
    assert curve.min_lr_ratio > 0
    assert curve.total_steps == 10_000


def test_end_of_the_curve_follows_its_handle(undone):
    curve = check_drag(undone, "End of the curve", right=-40)
    assert curve.total_steps < 10_000
    assert curve.min_lr_ratio == 0


def test_border_of_stages_follows_its_handle(undone):
    undone.do("Edit Stages")
    undone.drag("Stage 2, end", -30, 0)
    _, hold, fall = undone.curve.stages
    assert hold.steps < 6_000
    assert hold.steps + fall.steps == 9_500


def test_level_of_a_stage_follows_its_handle(undone):
    undone.do("Edit Stages", "Move stage 3 up")
    # A stage that holds has no separate level.
    _, level = undone.position("Stage 3, level")
    _, bottom, _ = undone.axes()
    assert level == pytest.approx(bottom, abs=0.1)
    undone.drag("Stage 3, level", 0, -40)
    curve = undone.curve
    assert curve.total_steps == 10_000
    assert curve.stages[2].to > 0.1
    undone.check(curve)


def test_drag_counts_from_where_it_began(undone):
    """Even after the value reached its limit."""
    x, y = undone.grab("Plateau 1, end")
    undone.page.mouse.move(x + 2000, y, steps=4)
    undone.settle()
    slider = undone.handle("Plateau 1, end")
    assert slider.get_attribute("aria-valuenow") == slider.get_attribute("aria-valuemax")
    undone.page.mouse.move(x, y, steps=4)
    undone.page.mouse.up()
    assert undone.curve == STABLE
    expect(undone.page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)


def test_escape_cancels_a_drag(undone):
    x, y = undone.grab("Warmup, end")
    undone.page.mouse.move(x + 60, y, steps=5)
    undone.page.keyboard.press("Escape")
    undone.page.mouse.move(x + 90, y, steps=3)
    undone.page.mouse.up()
    assert undone.curve == STABLE


def test_shift_drags_without_rounding(undone):
    undone.page.keyboard.down("Shift")
    undone.drag("Warmup, end", 20.5, 0)
    undone.page.keyboard.up("Shift")
    assert undone.curve.warmup_steps % 100 != 0


# Keys.


@pytest.mark.parametrize(
    ("name", "key", "arguments"),
    [
        ("Warmup, end", "ArrowRight", {"warmup_steps": 600}),
        ("Warmup, end", "Shift+ArrowLeft", {"warmup_steps": 490}),
        ("Warmup, end", "Home", {"warmup_steps": 0}),
        (
            "Plateau 1, start",
            "ArrowLeft",
            {"plateaus": (), "absolute_plateaus": [(1400, 3850)]},
        ),
        ("Plateau 1, place", "End", {"plateaus": (), "absolute_plateaus": [(6200, 3800)]}),
        ("Final learning rate", "ArrowUp", {"min_lr_ratio": 0.01}),
        ("End of the curve", "PageDown", {"total_steps": 9000}),
    ],
)
def test_keys_move_handles(undone, name, key, arguments):
    slider = undone.handle(name)
    slider.focus()
    undone.press(key)
    undone.check(replace(STABLE, **arguments))
    low = float(slider.get_attribute("aria-valuemin"))
    value = float(slider.get_attribute("aria-valuenow"))
    high = float(slider.get_attribute("aria-valuemax"))
    assert low <= value <= high
    assert slider.get_attribute("aria-valuetext")


def test_key_writes_a_decimal(undone):
    """A hundredth more than 0.56 is 0.57 in the field, not 0.5700000000000001."""
    undone.do(("Final LR / peak", "0.56"))
    undone.handle("Final learning rate").focus()
    undone.press("ArrowUp")
    expect(undone.field("Final LR / peak")).to_have_value("0.57")


def test_keys_before_an_answer_are_not_lost(design):
    design.field("Final LR / peak").fill("0.25")
    design.handle("Plateau 1, end").focus()
    for _ in range(6):
        design.page.keyboard.press("ArrowRight")
    expected = replace(STABLE, min_lr_ratio=0.25, plateaus=(), absolute_plateaus=[(1450, 4350)])
    design.settle()
    expect(design.handle("Plateau 1, end")).to_be_focused()
    assert design.curve == expected


# The pointer.


def read_step(design):
    """Return the step of the readout, after a check of its learning rates."""
    readout = design.page.locator("#readout").inner_text()
    numbers = re.sub(r"(?<=\d)\u202f", "", readout)
    names = "|".join(["step", *CURVES])
    *learning_rates, step = map(float, re.findall(rf"(?:{names})\s+([\d.e-]+)", numbers))
    expected = [PEAK * curve(int(step)) for curve in CURVES.values()]
    assert learning_rates == pytest.approx(expected, rel=1e-3, abs=1e-12)
    return step


def test_pointer_reads_the_learning_rates(design):
    box = design.page.locator("#picture").bounding_box()
    x = box["x"] + 0.6 * box["width"]
    y = box["y"] + 0.7 * box["height"]
    design.page.mouse.move(x, y)
    design.settle()
    expect(design.page.locator("#readout")).to_contain_text("Stable")
    step = read_step(design)
    reader = design.handle("Step at which to read learning rates")
    reader.focus()
    design.press("ArrowRight")
    assert read_step(design) == step + 100
    assert f"step {step + 100:.0f}: Cosine" in reader.get_attribute("aria-valuetext")


def point_of(design, step, level):
    """Return the point of the picture at a step and a level, in pixels of the window."""
    picture = design.page.locator("#picture")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    left, bottom, top = design.axes()
    right, _ = design.position("End of the curve")
    x = left + (right - left) * step / 10_000
    y = bottom + (top - bottom) * level
    return box["x"] + x, box["y"] + y


def point_on(design, curve, step):
    return point_of(design, step, curve(step))


def expect_chosen(design, name):
    expect(design.selected).to_have_accessible_name(f"Edit {name}")


def test_click_on_a_curve_chooses_it(design):
    design.page.mouse.click(*point_on(design, COSINE, 6_300))
    expect_chosen(design, "Cosine")
    expect(design.selected).to_be_focused()
    assert design.curve == COSINE
    design.page.mouse.click(*point_of(design, 9_500, 0.9))  # no curve is near
    expect_chosen(design, "Cosine")
    x, y = point_on(design, STAGED, 4_000)
    design.page.mouse.click(x, y + 6)  # near the line is enough
    expect_chosen(design, "Stages")


def test_click_on_the_row_of_a_hidden_curve_shows_it(undone):
    undone.do("Edit Cosine", "Hide Stages")
    expect_chosen(undone, "Cosine")
    undone.page.locator("tr[data-id='2'] [data-figure=bound]").click()
    assert undone.curve == STAGED
    expect(undone.page.locator("polyline")).to_have_count(3)


# Values at a moving handle.

HANDLES = {
    "Plateau 1, start": (-10, 0),
    "Warmup, end": (33, 0),
    "Final learning rate": (0, -40),
    "End of the curve": (-40, 0),
    "Peak learning rate": (0, 40),
}
"""How far each handle is moved to the right and down."""


def check_lies_within(inner, outer):
    """Check that a box lies within another one."""
    assert outer["x"] <= inner["x"]
    assert outer["y"] <= inner["y"]
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
    assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]


def test_value_is_shown_at_a_moving_handle(visit):
    with visit(size=PHONE) as design:
        label = design.page.locator("#picture .value:visible")
        picture = design.page.locator("#picture")
        for name, (right, down) in HANDLES.items():
            expect(label).to_have_count(0)
            x, y = design.grab(name)
            for times in (1, -20, 20):
                design.page.mouse.move(x + times * right, y + times * down, steps=2)
                design.settle()
                shown_value = design.handle(name).get_attribute("aria-valuetext")
                expect(label).to_have_text(shown_value)
                check_lies_within(label.bounding_box(), picture.bounding_box())
            design.page.mouse.up()
            design.undo_all()
