"""Handles on the picture, dragged and moved with keys; and what the pointer reads and chooses there."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect
from support.design.page import COSINE, CURVES, PEAK, PHONE, STABLE, STAGED, WIDE, DesignPage

from plateau_jax import PlateauCurve

pytestmark = pytest.mark.slow


def place(curve: PlateauCurve) -> tuple[int, int]:
    """Return the first step of the only plateau, and the first step after it."""
    _, _, begin, after, _ = curve.table.begin.tolist()
    return begin, after


# Multiples of a hundredth of the run, which begins its plateau at step 1450 and ends it at 5250.
STARTS, ENDS = range(1500, 9000, 100), range(5300, 9000, 100)
# A handle, how far it is dragged to the right and down, and what is true of the curve then.
DRAGGED: list[tuple[str, int, int, Callable[[Any], bool]]] = [
    ("Plateau 1, end", 47, 0, lambda curve: place(curve)[0] == 1450 and place(curve)[1] in ENDS),
    ("Plateau 1, start", -10, 0, lambda curve: place(curve)[0] < 1450 and place(curve)[1] == 5250),
    ("Plateau 1, place", 31, 0, lambda curve: place(curve)[0] in STARTS and np.ptp(place(curve)) == 3800),
    ("Warmup, end", 33, 0, lambda curve: curve.warmup_steps > 500 and curve.warmup_steps % 100 == 0),
    ("Initial learning rate", 0, -40, lambda curve: curve.init_lr_ratio > 0),
    ("Final learning rate", 0, -40, lambda curve: curve.min_lr_ratio > 0 and curve.total_steps == 10_000),
    ("End of the curve", -40, 0, lambda curve: curve.total_steps < 10_000 and curve.min_lr_ratio == 0),
]


def test_curve_follows_dragged_handles(design):
    """A drag is one step of undo."""
    for name, right, down, is_expected in DRAGGED:
        before = design.position(name)
        design.drag(name, right, down)
        curve = design.curve
        assert is_expected(curve), name
        design.check(curve)
        if name != "End of the curve":  # which changes the axes
            after = design.position(name)
            # Values snap to a unit near the pointer; a plateau that moves also changes its level.
            assert after[0] - before[0] == pytest.approx(right, abs=4), name
            assert down == 0 or after[1] - before[1] == pytest.approx(down, abs=3), name
        design.do("Undo")
        expect(design.button("Undo")).to_be_disabled()
        assert design.curve == STABLE
        design.do("Redo")
        assert design.curve == curve
        design.do("Undo")


def test_derived_curves_and_stages_follow_their_handles(design):
    design.do("+ Cooldown")
    design.drag("Cooldown, start", -20, 0)
    dragged = design.curve
    assert (dragged.at < 8_000, dragged.steps) == (True, 2_000)
    design.undo_all()
    design.do("+ Continuation")
    name = "Continuation, final learning rate"
    for down in (-40, 20):
        before = design.position(name)
        design.drag(name, 0, down)
        assert design.position(name)[1] - before[1] == pytest.approx(down, abs=3)
    design.undo_all()
    design.do("Edit Stages")
    design.drag("Stage 2, end", -30, 0)
    _, hold, fall = design.curve.stages
    assert (hold.steps < 6_000, hold.steps + fall.steps) == (True, 9_500)
    design.undo_all()
    design.do("Move stage 3 up")
    # A stage that holds has no level of its own.
    assert design.position("Stage 3, level")[1] == pytest.approx(design.axes()[1], abs=0.1)
    design.drag("Stage 3, level", 0, -40)
    curve = design.curve
    assert (curve.total_steps, curve.stages[2].to > 0.1) == (10_000, True)
    design.check(curve)


def test_drag_counts_from_where_it_began(design):
    """Even after the value reached its limit; and Escape cancels it."""
    x, y = design.grab("Plateau 1, end")
    design.page.mouse.move(x + 2000, y, steps=4)
    design.settle()
    design.page.mouse.move(x, y, steps=4)
    design.page.mouse.up()
    assert design.curve == STABLE
    expect(design.page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)
    x, y = design.grab("Warmup, end")
    design.page.mouse.move(x + 60, y, steps=5)
    design.page.keyboard.press("Escape")
    design.page.mouse.move(x + 90, y, steps=3)
    design.page.mouse.up()
    assert design.curve == STABLE


def test_shift_drags_without_rounding(design):
    design.page.keyboard.down("Shift")
    design.drag("Warmup, end", 20.5, 0)
    design.page.keyboard.up("Shift")
    assert design.curve.warmup_steps % 100 != 0


KEYS = [
    ("Warmup, end", "ArrowRight", {"warmup_steps": 600}),
    ("Warmup, end", "Shift+ArrowLeft", {"warmup_steps": 490}),
    ("Warmup, end", "PageUp", {"warmup_steps": 1500}),
    ("Warmup, end", "Home", {"warmup_steps": 0}),
    ("Plateau 1, end", "PageDown", {"plateaus": [(10, 30)]}),
    ("Plateau 1, start", "ArrowLeft", {"plateaus": (), "absolute_plateaus": [(1400, 3850)]}),
    ("Plateau 1, place", "Shift+ArrowUp", {"plateaus": (), "absolute_plateaus": [(1460, 3800)]}),
    ("Plateau 1, place", "End", {"plateaus": [(60, 40)]}),
    ("Final learning rate", "ArrowUp", {"min_lr_ratio": 0.01}),
    ("End of the curve", "ArrowDown", {"total_steps": 9900}),
]


def test_keys_move_handles(design):
    for name, key, arguments in KEYS:
        slider = design.handle(name)
        slider.focus()
        design.press(key)
        design.check(replace(STABLE, **arguments))
        low, now, high = (float(slider.get_attribute(f"aria-value{part}")) for part in ("min", "now", "max"))
        assert low <= now <= high
        assert slider.get_attribute("aria-valuetext")
        design.undo_all()


def test_keys_before_an_answer_are_not_lost(design):
    design.field("Final LR / peak").fill("0.25")
    design.handle("Plateau 1, end").focus()
    for _ in range(6):
        design.page.keyboard.press("ArrowRight")
    expected = replace(STABLE, min_lr_ratio=0.25, plateaus=(), absolute_plateaus=[(1450, 4350)])
    design.settle()
    expect(design.handle("Plateau 1, end")).to_be_focused()
    assert design.curve == expected


def test_pointer_reads_the_learning_rates(design):
    box = design.page.locator("#picture").bounding_box()
    design.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"])
    design.settle()
    readout = design.page.locator("#readout")
    expect(readout).to_contain_text("Stable")

    def read_step() -> float:
        numbers = re.sub(r"(?<=\d)\u202f", "", readout.inner_text())
        *values, step = map(float, re.findall(r"(?:step|Cosine|Stages|Stable)\s+([\d.e-]+)", numbers))
        expected = [PEAK * curve(int(step)) for curve in CURVES.values()]
        assert values == pytest.approx(expected, rel=1e-3, abs=1e-12)
        return step

    step = read_step()
    reader = design.handle("Step at which to read learning rates")
    reader.focus()
    design.press("ArrowRight")
    assert read_step() == step + 100
    assert f"step {step + 100:.0f}: Cosine" in reader.get_attribute("aria-valuetext")


def point_on_curve(design: DesignPage, level: float, step: int) -> tuple[float, float]:
    design.page.locator("#picture").scroll_into_view_if_needed()
    box: Any = design.page.locator("#picture").bounding_box()
    left, bottom, top = design.axes()
    right = design.position("End of the curve")[0]
    return box["x"] + left + (right - left) * step / 10_000, box["y"] + bottom + (top - bottom) * level


def test_a_click_on_a_curve_or_its_row_chooses_it(design):
    def expect_chosen(name: str) -> None:
        expect(design.selected).to_have_accessible_name(f"Edit {name}")

    design.page.mouse.click(*point_on_curve(design, COSINE(6_300), 6_300))
    expect_chosen("Cosine")
    expect(design.selected).to_be_focused()
    assert design.curve == COSINE
    design.page.mouse.click(*point_on_curve(design, 0.9, 9_500))  # no curve is near
    expect_chosen("Cosine")
    x, y = point_on_curve(design, STAGED(4_000), 4_000)
    design.page.mouse.click(x, y + 6)  # near the line is enough
    expect_chosen("Stages")
    design.page.locator("tr[data-id='3'] [data-figure=bound]").click()
    expect_chosen("Stable")
    expect(design.selected).to_be_focused()
    design.field("Name of Cosine").click()
    expect_chosen("Cosine")
    expect(design.field("Name of Cosine")).to_be_focused()
    design.do("Hide Stages")
    expect_chosen("Cosine")
    design.page.locator("tr[data-id='2'] [data-figure=bound]").click()
    assert design.curve == STAGED
    expect(design.page.locator("polyline")).to_have_count(3)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_value_is_shown_at_a_moving_handle(visit, size):
    with visit(size=size) as design:
        label, picture = design.page.locator("#picture .value:visible"), design.page.locator("#picture")
        for name, right, down, _ in [*DRAGGED, ("Peak learning rate", 0, 40, None)]:
            expect(label).to_have_count(0)
            x, y = design.grab(name)
            for times in (1, -20, 20):
                design.page.mouse.move(x + times * right, y + times * down, steps=2)
                design.settle()
                expect(label).to_have_text(design.handle(name).get_attribute("aria-valuetext"))
                inner, outer = label.bounding_box(), picture.bounding_box()
                for start, extent in (("x", "width"), ("y", "height")):
                    assert outer[start] <= inner[start] <= outer[start] + outer[extent] - inner[extent]
            design.page.mouse.up()
            design.undo_all()


def test_touch_drags_a_handle_to_the_end(visit):
    moves = [("Start", [0]), *(("Move", [4 * count]) for count in range(1, 16)), ("End", [])]
    with visit(size=PHONE, has_touch=True, is_mobile=True) as design:
        touch = design.page.context.new_cdp_session(design.page)
        for name in ("Plateau 1, end", "Step at which to read learning rates"):
            design.handle(name).press("PageUp")  # away from other handles
            design.settle()
            box = design.handle(name).locator(".mark, path").first.bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            before = design.position(name)[0]
            for kind, moved in moves:
                points = [{"x": x + right, "y": y} for right in moved]
                touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
            design.settle()
            assert design.position(name)[0] - before == pytest.approx(60, abs=3)
