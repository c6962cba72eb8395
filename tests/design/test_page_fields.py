"""The fields of the selected curve."""

import json

import pytest
from playwright.sync_api import Route, expect
from support.design.design import describe_curve
from support.design.page import (
    PEAK,
    STABLE,
    STAGED,
    assert_shown,
    at_both_sizes,
    curve_of_json,
    drag,
    wait_until_settled,
)

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve
from plateau_jax.numerics.exact import percent_of

pytestmark = pytest.mark.slow


def test_invalid_field_keeps_the_last_valid_curve(page):
    before = page.locator("polyline.selected").get_attribute("points")
    field = page.get_by_label("Warmup steps")
    field.fill("20000")
    wait_until_settled(page)
    invalid = {**STABLE.to_dict(), "warmup_steps": 20_000}
    message = describe_curve({"curve": invalid, "peak": PEAK})["fault"]["message"]
    assert message.startswith("warmup_steps = 20000 must lie")
    expect(field).to_have_attribute("aria-invalid", "true")
    shown = page.locator(f"#{field.get_attribute('aria-describedby')}")
    expect(shown).to_have_text(message)
    expect(page.locator("#stale")).to_be_visible()
    assert curve_of_json(page) == STABLE
    assert page.locator("polyline.selected").get_attribute("points") == before
    field.fill("five hundred")
    wait_until_settled(page)
    expect(shown).to_contain_text("warmup_steps = 'five hundred' must be an integer")
    field.fill("600")
    wait_until_settled(page)
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#stale")).to_be_hidden()
    assert_shown(page, PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 600}))


def test_invalid_plateau_has_a_message_in_its_row(page):
    page.get_by_label("Plateau 1 in %, start").fill("200")
    wait_until_settled(page)
    expect(page.get_by_label("Plateau 1 in %, length")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[id='fault-curve-plateaus-0']")).to_contain_text("(200, 40) must lie in 0 … 100 %")


def test_fields_describe_the_curve(page):
    page.get_by_label("Total steps").fill("2e4")
    page.get_by_label("Warmup shape").select_option("cosine")
    page.get_by_label("Decay shape").select_option("1-sqrt")
    page.get_by_label("Plateau 1 in %, start").fill("20")
    page.get_by_role("button", name="+ Plateau, in %").click()
    page.get_by_label("Plateau 2 in %, start").fill("70.5")
    page.get_by_label("Plateau 2 in %, length").fill("1.25")
    page.get_by_role("button", name="+ in steps").click()
    page.get_by_label("Plateau 1 in steps, start").fill("19_000")
    page.get_by_label("Plateau 1 in steps, length").fill("10")
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


def test_added_plateaus_fit_after_the_others(page):
    for name in ["+ Plateau, in %", "+ in steps", "+ Plateau, in %"]:
        page.get_by_role("button", name=name).click()
        wait_until_settled(page)
        expect(page.locator("#stale")).to_be_hidden()
    curve = curve_of_json(page)
    assert (len(curve.plateaus), curve.absolute_plateaus[0][1] % 100) == (3, 0)


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
    expect(page.get_by_label("Stage 2, steps")).to_be_focused()
    assert curve_of_json(page) == StagedCurve([first, (3_000,), (3_000, 0.5, "exponential"), third])
    page.get_by_label("Stage 2, steps").fill("100")
    page.get_by_label("Stage 3, steps").fill("6000")
    page.get_by_role("button", name="Remove stage 2").click()
    expected = StagedCurve([first, (6_000, 0.5, "exponential"), third])
    assert_shown(page, expected)
    drag(page, "Stage 2, end", -30, 0)
    curve = curve_of_json(page)
    assert curve.total_steps == expected.total_steps
    assert curve.stages[1].steps < 6_000 < curve.stages[1].steps + curve.stages[2].steps
    drag(page, "Stage 2, level", 0, -20)
    curve = curve_of_json(page)
    assert curve.stages[1].to > 0.5
    assert_shown(page, curve)


def test_number_gets_no_message_while_it_is_typed(page):
    field = page.get_by_role("textbox", name="Peak learning rate")
    field.fill("")
    field.press_sequentially("6e-")
    wait_until_settled(page)
    expect(page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)
    field.press_sequentially("4")
    wait_until_settled(page)
    assert "peak_value=0.0006" in page.locator("#code").text_content()
    field.fill("6e-")
    expect(page.locator("#stale")).to_be_visible()
    field.blur()
    expect(page.locator("#fault-peak")).to_contain_text("peak = '6e-' must be a number")


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
    expect(page.locator("[id='fault-curve-scale']")).to_contain_text("scale = 2 must lie in (0, 1]")
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
    expect(page.locator("[id='fault-curve-start']")).to_contain_text("start = 9000 must be below")
    page.get_by_role("button", name="Remove the part").click()
    page.get_by_role("button", name="Remove the batch plan").click()
    assert curve_of_json(page) == STABLE


def test_late_answers_are_superseded(page):
    """Of the edits made while an answer is pending, only the last one is asked about, once it has arrived."""
    held: list[Route] = []
    page.route("**/page", lambda route: route.continue_() if held else held.append(route))
    field = page.get_by_label("Warmup steps")
    for steps in (600, 700, 800, 900):
        field.fill(str(steps))
    expect(page.locator("main[aria-busy=true]")).to_be_attached()
    (first,) = held
    first.continue_()
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 900})
    assert_shown(page, curve_of_json(page))


PLACES = """[...document.querySelectorAll("#controls :is(input, select)")]
    .filter((field) => field.checkVisibility()).map((field) => field.getBoundingClientRect().y)"""


@at_both_sizes
def test_fields_do_not_move_while_one_is_typed(page):
    wait_until_settled(page)
    before = page.evaluate(PLACES)
    for label, text, moved in (
        ("Total steps", "0", None),
        ("Final LR / peak", "2", None),
        ("Plateau 1 in %, length", "many", None),
        ("Warmup steps", "-1", 3),  # a message of two lines moves the fields below
    ):
        page.get_by_label(label).fill(text)
        wait_until_settled(page)
        expect(page.get_by_label(label)).to_have_attribute("aria-invalid", "true")
        scrolled = page.evaluate(PLACES)
        shift = scrolled[0] - before[0]  # to the field, as by the browser
        assert scrolled[:moved] == pytest.approx([place + shift for place in before[:moved]])
        page.keyboard.press("Control+z")
        wait_until_settled(page)


def test_percentage_is_one_of_the_run(page):
    page.get_by_role("button", name="+ in steps").click()
    page.get_by_label("Plateau 1 in steps, start").fill("80%")
    page.get_by_label("Plateau 1 in steps, length").fill("2.5 %")
    page.get_by_label("Warmup steps").fill("4%")
    assert curve_of_json(page) == PlateauCurve(
        **{**STABLE.to_dict(), "warmup_steps": 400, "absolute_plateaus": [(8_000, 250)]}
    )
    page.get_by_label("Warmup steps").fill("500")
    page.get_by_role("button", name="Remove plateau 1 in steps").click()
    page.get_by_role("button", name="+ Cooldown").click()
    page.get_by_label("Cooldown: First step").fill("65%")
    page.get_by_label("Cooldown: Steps").fill("35%")  # of the run that the cooldown ends
    assert curve_of_json(page) == STABLE.cooldown(6_500, 3_500)
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_label("Stage 3, steps").fill("20%")
    stages = [(500, 1.0), (6_000,), (1_625, 0.0, "1-sqrt")]
    assert curve_of_json(page) == StagedCurve(stages)


@pytest.mark.parametrize("label", ["start", "length"])
def test_emptied_plateau_gets_a_message(page, label):
    field = page.get_by_label(f"Plateau 1 in %, {label}")
    for text in ("", "0x10", "1e300"):
        field.fill(text)
        field.blur()
        wait_until_settled(page)
        expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("15")
    index = ["start", "length"].index(label)
    assert curve_of_json(page).plateaus[0][index] == 15


def test_percentages_are_read_as_by_the_library(page):
    tenths = [number / 10 for number in range(1001)]
    wholes = (1, 7, 95, 9_500, 2**31 - 1)
    steps_of = {whole: [percent_of(whole, percentage) for percentage in tenths] for whole in wholes}
    pairs = [
        (steps, whole)
        for whole in wholes
        for steps in {*steps_of[whole][::7], 0, 1, whole // 3, whole - 1, whole}
    ]
    steps, rounded = page.evaluate(
        """async ([tenths, wholes, pairs]) => {
            const { roundPercentage, stepsOfPercentage } = await import("./edits.js");
            const steps = wholes.map(whole => tenths.map(percentage => stepsOfPercentage(percentage, whole)));
            return [steps, pairs.map(([steps, whole]) => roundPercentage(steps, whole))];
        }""",
        [tenths, wholes, pairs],
    )
    assert steps == [*steps_of.values()]
    for (steps, whole), percentage in zip(pairs, rounded, strict=True):
        candidates = [tenth for tenth, exact in zip(tenths, steps_of[whole], strict=True) if exact == steps]
        assert percentage == min(candidates, default=None), (steps, whole)


def test_likely_mistakes_are_reported(page):
    page.get_by_label("Final LR / peak").fill("3e-5")
    wait_until_settled(page)
    advice = page.get_by_role("status").filter(has_text="looks like a learning rate")
    expect(advice).to_be_visible()
    page.get_by_label("Total steps").fill("0")
    expect(page.locator("#fault-curve-total_steps")).to_contain_text("must lie")
    expect(advice).to_have_count(0)  # it was about the last valid curve
