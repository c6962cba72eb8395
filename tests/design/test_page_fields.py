"""The fields of the selected curve."""

import json

import pytest
from playwright.sync_api import Route, expect
from support.design.design import ask
from support.design.page import PEAK, STABLE, STAGED, assert_shown, curve_of_json, drag, wait_until_settled

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve

pytestmark = pytest.mark.slow


def test_invalid_field_keeps_the_last_valid_curve(page, server):
    before = page.locator("polyline.selected").get_attribute("points")
    field = page.get_by_label("Warmup steps")
    field.fill("20000")
    wait_until_settled(page)
    invalid = {**STABLE.to_dict(), "warmup_steps": 20_000}
    message = ask(server, "/curve", {"curve": invalid, "peak": PEAK})["fault"]["message"]
    assert message.startswith("{warmup_steps}: 20000 must lie")
    expect(field).to_have_attribute("aria-invalid", "true")
    shown = page.locator(f"#{field.get_attribute('aria-describedby')}")
    expect(shown).to_have_text(message.format(warmup_steps="Warmup steps"))
    expect(page.locator("#stale")).to_be_visible()
    assert curve_of_json(page) == STABLE
    assert page.locator("polyline.selected").get_attribute("points") == before
    field.fill("five hundred")
    wait_until_settled(page)
    expect(shown).to_contain_text("“five hundred” must be a whole number")
    field.fill("600")
    wait_until_settled(page)
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#stale")).to_be_hidden()
    assert_shown(page, PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 600}))


def test_invalid_plateau_has_a_message_in_its_row(page):
    page.get_by_label("Plateau 1 in %, start").fill("200")
    wait_until_settled(page)
    expect(page.get_by_label("Plateau 1 in %, length")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[id='fault-curve-plateaus-0']")).to_contain_text("must lie between 0 and 100 %")


def test_fields_describe_the_curve(page):
    page.get_by_label("Total steps").fill("2e4")
    page.get_by_label("Warmup shape").select_option("cosine")
    page.get_by_label("Decay shape").select_option("1-sqrt")
    page.get_by_label("Plateau 1 in %, start").fill("20")
    page.get_by_role("button", name="+ Plateau, in %").click()
    page.get_by_label("Plateau 2 in %, start").fill("70.5")
    page.get_by_label("Plateau 2 in %, length").fill("1.25")
    page.get_by_role("button", name="+ in steps").click()
    page.get_by_label("Plateau 3 in steps, start").fill("19_000")
    page.get_by_label("Plateau 3 in steps, length").fill("10")
    expected = PlateauCurve(
        20_000,
        warmup_steps=500,
        warmup_shape="cosine",
        decay_shape="1-sqrt",
        plateaus=[(20, 40), (70.5, 1.25)],
        absolute_plateaus=[(19_000, 10)],
    )
    assert curve_of_json(page) == expected
    assert_shown(page, expected)
    page.get_by_role("button", name="Remove plateau 1 in %").click()
    assert curve_of_json(page) == PlateauCurve(**{**expected.to_dict(), "plateaus": [(70.5, 1.25)]})


def test_added_plateaus_fit_between_the_others(page):
    page.get_by_label("Total steps").fill("2000")
    for name in ["+ Plateau, in %", "+ in steps", "+ in steps"] * 3:
        page.get_by_role("button", name=name).click()
        wait_until_settled(page)
        expect(page.locator("#stale")).to_be_hidden()
    curve = curve_of_json(page)
    assert isinstance(curve, PlateauCurve)
    assert (len(curve.plateaus), len(curve.absolute_plateaus)) == (1 + 3, 6)


def test_stages_can_be_edited_moved_and_dragged(page):
    page.get_by_role("radio", name="Edit Stages").check()
    assert curve_of_json(page) == STAGED
    first, second, third = STAGED.stages
    page.get_by_role("button", name="Move stage 3 up").click()
    expect(page.get_by_role("button", name="Move stage 2 up")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Stage 1, steps")).to_be_focused()
    assert curve_of_json(page) == StagedCurve([third, first, second])
    page.get_by_role("button", name="Move stage 1 down").click()
    page.get_by_role("button", name="Move stage 2 down").click()
    assert curve_of_json(page) == STAGED
    page.get_by_label("Stage 2, to").fill("0.5")
    page.get_by_label("Stage 2, shape").select_option("exponential")
    page.get_by_role("button", name="+ Stage").click()
    page.get_by_label("Stage 4, steps").fill("100")
    stages = [first, (6_000, 0.5, "exponential"), third, (100,)]
    assert curve_of_json(page) == StagedCurve(stages)
    page.get_by_role("button", name="Remove stage 4").click()
    expected = StagedCurve(stages[:3])
    assert_shown(page, expected)
    drag(page, "Stage 2, end", -30, 0)
    curve = curve_of_json(page)
    assert curve.total_steps == expected.total_steps
    assert curve.stages[1].steps < 6_000 < curve.stages[1].steps + curve.stages[2].steps
    drag(page, "Stage 2, level", 0, -20)
    curve = curve_of_json(page)
    assert curve.stages[1].to > 0.5
    assert_shown(page, curve)


def test_derived_curves_can_be_edited_and_dragged(page):
    page.get_by_role("button", name="+ Cooldown").click()
    page.get_by_label("Cooldown: First step").fill("7000")
    page.get_by_label("Cooldown: Steps").fill("1000")
    page.get_by_label("Cooldown: Shape").select_option("linear")
    cooled = STABLE.cooldown(7000, 1000, shape="linear")
    assert curve_of_json(page) == cooled
    drag(page, "Cooldown, start", -20, 0)
    dragged = curve_of_json(page)
    assert dragged.at < 7000
    assert dragged.steps == 1000
    page.keyboard.press("Control+z")
    page.get_by_role("button", name="+ Continuation").last.click()
    page.get_by_label("Continuation: Scale").fill("0.25")
    assert curve_of_json(page) == cooled.then(cooled, scale=0.25)
    assert_shown(page, cooled.then(cooled, scale=0.25))
    page.get_by_label("Continuation: Scale").fill("2")
    wait_until_settled(page)
    expect(page.locator("[id='fault-curve-scale']")).to_contain_text("Scale: 2 must be above 0 and at most 1")
    page.get_by_role("button", name="Remove the continuation").click()
    page.get_by_role("button", name="Remove the cooldown").click()
    assert curve_of_json(page) == STABLE


def test_parts_and_scaled_curves_can_be_edited(page):
    plan = BatchPlan([(0, 8), (40_000, 32)])
    scaled = plan.scale(STABLE, 8, reference=32)
    page.get_by_role("button", name="Open…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(json.dumps(scaled.part(100, 9000).to_dict()))
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_be_hidden()
    page.get_by_label("Part: First step", exact=True).fill("200")
    page.get_by_label("Batch plan: Reference batch").fill("64")
    expected = plan.scale(STABLE, 8, reference=64).part(200, 9000)
    assert_shown(page, expected)
    assert curve_of_json(page) == expected
    page.get_by_label("Part: First step", exact=True).fill("9000")
    wait_until_settled(page)
    expect(page.locator("[id='fault-curve-start']")).to_contain_text("First step: 9000 must be below")
    page.get_by_role("button", name="Remove the part").click()
    page.get_by_role("button", name="Remove the batch plan").click()
    assert curve_of_json(page) == STABLE


def test_late_answers_are_superseded(page):
    """Of the edits made while an answer is pending, only the last one is asked about, once it has arrived."""
    held: list[Route] = []
    page.route("**/curve", lambda route: route.continue_() if held else held.append(route))
    field = page.get_by_label("Warmup steps")
    for steps in (600, 700, 800, 900):
        field.fill(str(steps))
    expect(page.locator("main[aria-busy=true]")).to_be_attached()
    (first,) = held
    first.continue_()
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 900})
    assert_shown(page, curve_of_json(page))


def test_likely_mistakes_are_reported(page):
    page.get_by_label("Final LR / peak").fill("3e-5")
    wait_until_settled(page)
    expect(page.get_by_role("status").filter(has_text="looks like a learning rate")).to_be_visible()
