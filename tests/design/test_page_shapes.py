"""Shapes, chosen from a list with small pictures, and the P of formulas."""

import json

import numpy as np
import pytest
from playwright.sync_api import expect
from support.design.page import STABLE, STAGED, assert_shown, curve_of_json, wait_until_settled

from plateau_jax import PlateauCurve, StagedCurve
from plateau_jax.numerics import shapes

pytestmark = pytest.mark.slow

FORMULAS = StagedCurve(
    [(500, 1.0), (4_500, 0.5, "(1-x)^2.5"), (4_000, 0.1, "t^-0.7"), (1_000, 0.0, "1-x^0.75")]
)


def levels_in_picture(drawing) -> np.ndarray:
    """Return the levels that a small picture shows, from its first to its last point."""
    points = drawing.locator("path").get_attribute("d").removeprefix("M").split()
    return 1 - (np.array([float(point.split(",")[1]) for point in points]) - 2) / 12


def test_every_shape_can_be_chosen(page):
    warmup, decay = (page.get_by_label(label) for label in ("Warmup shape", "Decay shape"))
    for shape in ("cosine", "linear"):
        warmup.select_option(shape)
        assert curve_of_json(page).warmup_shape == shape
    names = decay.locator("option").all_text_contents()
    assert names == [*shapes.SHAPES, *shapes.POWER_SHAPES]
    for name in names:
        decay.select_option(name)
        expected = PlateauCurve(**{**STABLE.to_dict(), "decay_shape": name.replace("P", "2")})
        assert curve_of_json(page) == expected
        expect(page.get_by_label("P of the decay")).to_be_visible(visible="P" in name)
    page.get_by_role("radio", name="Edit Stages").check()
    choice = page.get_by_label("Stage 2, shape")
    page.get_by_label("Stage 2, to").fill("0.5")
    assert choice.locator("option").all_text_contents() == [*shapes.NAMED_SHAPES, *shapes.FORMULAS]
    for name in (*shapes.NAMED_SHAPES, *shapes.FORMULAS):
        choice.select_option(name)
        power = "0.5" if name == "t^-P" else "2"
        first, _, third = STAGED.stages
        shape = name.replace("P", power)
        assert curve_of_json(page) == StagedCurve([first, (6_000, 0.5, shape), third])
    assert_shown(page, curve_of_json(page))


def test_power_is_typed(page):
    page.get_by_label("Decay shape").select_option("1-x^P")
    power = page.get_by_label("P of the decay")
    expect(power).to_have_value("2")
    power.fill("0.75")
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "decay_shape": "1-x^0.75"})
    for text in ("", "-1", "99", "two"):
        power.fill(text)
        if not text:  # the beginning of a number, until the field is left
            wait_until_settled(page)
            expect(power).not_to_have_attribute("aria-invalid", "true")
            power.blur()
        wait_until_settled(page)
        expect(power).to_have_attribute("aria-invalid", "true")
        expect(page.locator("[id='fault-curve-decay_shape']")).not_to_be_empty()
        expect(power).to_have_value(text)
    assert curve_of_json(page).decay_shape == "1-x^0.75"
    power.fill("1.50")
    assert curve_of_json(page).decay_shape == "1-x^1.5"
    expect(power).to_have_value("1.50")
    expect(power).not_to_have_attribute("aria-invalid", "true")
    power.press("Control+z")
    expect(power).to_have_value("two")


def test_shape_is_chosen_with_the_keyboard(page):
    choice = page.get_by_label("Decay shape")
    choice.focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(choice).to_have_value("cosine")
    expect(choice).to_be_focused()
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "decay_shape": "cosine"})


def test_small_pictures_have_the_levels_of_the_shapes(page):
    """Formulas are drawn at their initial P."""
    decay = page.get_by_label("Decay shape")
    for name in ("linear", "cosine", "1-sqrt", "1-x^P", "(1-x)^P"):
        decay.select_option(name)
        shown = levels_in_picture(decay.locator("option", has_text=name).last)
        exact = PlateauCurve(len(shown) - 1, decay_shape=name.replace("P", "2"))(np.arange(len(shown)))
        assert np.abs(shown - exact).max() < 0.005, name
        assert np.array_equal(levels_in_picture(decay.locator("selectedcontent")), shown)
    rising = levels_in_picture(page.get_by_label("Warmup shape").locator("option", has_text="cosine"))
    assert (rising[0], rising[-1]) == (0, 1)
    assert np.all(np.diff(rising) >= 0)


def test_pictures_of_a_rising_stage_rise(page):
    page.get_by_role("radio", name="Edit Stages").check()
    for number, ends in ((1, (0, 1)), (3, (1, 0))):
        choice = page.get_by_label(f"Stage {number}, shape")
        choice.select_option("1-sqrt")
        wait_until_settled(page)
        shown = levels_in_picture(choice.locator("selectedcontent"))
        assert (shown[0], shown[-1]) == ends


def test_shapes_of_opened_curves_are_kept(page):
    page.get_by_role("button", name="Open…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(json.dumps(FORMULAS.to_dict()))
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    expect(page.get_by_label("Stage 2, shape")).to_have_value("(1-x)^P")
    expect(page.get_by_label("Stage 2, P")).to_have_value("2.5")
    expect(page.get_by_label("Stage 3, P")).to_have_value("0.7")
    page.get_by_label("Stage 1, steps").fill("600")
    changed = StagedCurve([(600, 1.0), *FORMULAS.stages[1:]])
    assert curve_of_json(page) == changed
    assert_shown(page, changed)
