"""The fields of the selected curve: what is typed, clicked and chosen gives the curve."""

import json
from dataclasses import replace

import pytest
from design.page import COSINE, CURVES, STABLE, STAGED
from playwright.sync_api import expect
from support.numerics.oracle import percent_of

from plateau_jax import BatchPlan, PlateauCurve, StagedCurve
from plateau_jax.shapes.known_shapes import SHAPES, SHAPES_ALLOWING_ZERO
from plateau_jax.tools.design.answers import INITIAL_POWERS

pytestmark = pytest.mark.slow

RISE, HOLD, FALL = STAGED.stages


# Edits give the curve, and can be undone.


def check_edits(design, begin, actions, expected, *, then=()):
    """Check the curve after these actions and, once the server has answered, those of `then`."""
    for name, curve in CURVES.items():
        if curve == begin:
            design.do(f"Edit {name}")
    design.do(*actions)
    design.do(*then)
    design.check(expected)
    design.undo_all()
    assert design.curve == begin


def test_every_field_of_a_plateau_curve(undone):
    curve = PlateauCurve(
        20_000,
        warmup_steps=500,
        warmup_shape="cosine",
        decay_shape="1-x^1.5",
        plateaus=[(20, 40), (70.5, 1.25)],
        absolute_plateaus=[(19_000, 10)],
        min_lr_ratio=0.5,
    )
    actions = [
        ("Total steps", "2e4"),
        ("Warmup shape", "cosine"),
        ("Decay shape", "1-x^P"),
        ("Decay P", "1.50"),
        ("Final LR / peak", "0.5"),
        ("Plateau 1 in %, start", "20"),
        "+ Plateau, in %",
        ("Plateau 2 in %, start", "70.5"),
        ("Plateau 2 in %, length", "1.25"),
        "+ in steps",
        ("Plateau 1 in steps, start", "19_000"),
        ("Plateau 1 in steps, length", "10"),
        "Remove plateau 1 in %",
    ]
    without_the_first = replace(curve, plateaus=[(70.5, 1.25)])
    check_edits(undone, STABLE, actions, without_the_first)


def test_new_change_after_undo_ends_redo(undone):
    undone.do(("Warmup steps", "700"), "Undo", ("Warmup steps", "900"))
    expect(undone.button("Redo")).to_be_disabled()
    undone.check(replace(STABLE, warmup_steps=900))


def test_stages_are_added_removed_and_moved(undone):
    actions = [
        ("Stage 2, to", "0.5"),
        ("Stage 2, shape", "cosine"),
        "+ Stage",
        ("Stage 2, steps", "100"),
        ("Stage 3, steps", "6000"),
        "Remove stage 2",
        "Move stage 3 up",
    ]
    curve = StagedCurve([RISE, FALL, (6_000, 0.5, "cosine")])
    check_edits(undone, STAGED, actions, curve)


def test_cooldown_and_continuation(undone):
    actions = [
        "+ Cooldown",
        ("Cooldown: First step", "7000"),
        ("Cooldown: Steps", "1000"),
        ("Cooldown: Shape", "linear"),
        "+ Continuation",
        ("Continuation: Scale", "0.25"),
    ]
    cooled = STABLE.cooldown(7000, 1000, shape="linear")
    curve = cooled.then(cooled, scale=0.25)
    check_edits(undone, STABLE, actions, curve)


# What the library reads as a number.


def test_numbers_with_letters_and_percentages(undone):
    actions = [
        ("Total steps", "1.5M"),
        ("Warmup steps", "2%"),
        ("Plateau 1 in %, start", "20 %"),
        "+ in steps",
        ("Plateau 1 in steps, start", "1.2M"),
        ("Plateau 1 in steps, length", "2.5k"),
    ]
    curve = replace(
        STABLE,
        total_steps=1_500_000,
        warmup_steps=30_000,
        plateaus=[(20, 40)],
        absolute_plateaus=[(1_200_000, 2_500)],
    )
    # The page places the cooldown by the total steps, and the server reads what "1.5M" means.
    expected = curve.cooldown(1_200_000, 300_000)
    check_edits(undone, STABLE, actions, expected, then=["+ Cooldown"])


# Added curves have the selected length and warmup.


def test_copy_is_that_of_the_last_valid_curve(undone):
    check_edits(undone, STABLE, [("Warmup steps", "20000"), "a copy"], STABLE)


def test_added_cosine(undone):
    check_edits(undone, STAGED, ["a cosine"], COSINE)


def test_added_stages_have_the_selected_warmup(undone):
    actions = [("Initial LR / peak", "0.25"), ("Warmup shape", "cosine"), "stages"]
    stages = [(500, 1.0, "cosine"), (6_650,), (2_850, 0.0, "1-sqrt")]
    curve = StagedCurve(stages, start=0.25)
    check_edits(undone, STABLE, actions, curve)


# Wrong texts.


@pytest.mark.parametrize(
    ("label", "text", "place", "message"),
    [
        ("Peak learning rate", "6e-", "peak", "peak = '6e-' must be a number"),
        ("Warmup steps", "20000", "curve-warmup_steps", "warmup_steps = 20000 must lie"),
        ("Total steps", "1.2345k", "curve-total_steps", "'1.2345k' must be a whole number"),
        ("Plateau 1 in %, start", "200", "curve-plateaus-0", "(200, 40) must lie in 0 … 100 %"),
        ("Decay P", "", "curve-decay_shape", "must"),
        ("Cooldown: Steps", "0", "curve-steps", "steps = 0 must"),
    ],
)
def test_wrong_fields_have_a_message_and_keep_the_curve(undone, label, text, place, message):
    if label == "Decay P":
        undone.do(("Decay shape", "1-x^P"))
    if label.startswith("Cooldown"):
        undone.do("+ Cooldown")
    valid = undone.curve
    drawn = undone.drawn()
    undone.do((label, text))
    field = undone.field(label)
    field.blur()
    undone.settle()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value(text)
    expect(field).to_have_attribute("aria-describedby", f"fault-{place}")
    expect(undone.page.locator(f"[id='fault-{place}']")).to_contain_text(message)
    expect(undone.page.locator("#stale")).to_be_visible()
    assert undone.curve == valid
    assert undone.drawn() == drawn


def test_number_gets_no_message_while_it_is_typed(undone):
    field = undone.field("Peak learning rate")
    field.fill("")
    field.press_sequentially("6e-")
    undone.settle()
    messages = undone.page.locator(".fault:not(:empty):not([hidden])")
    expect(messages).to_have_count(0)
    field.press_sequentially("4")
    assert "peak_value=0.0006" in undone.code


def test_likely_mistakes_are_reported(undone):
    undone.do(("Final LR / peak", "3e-5"))
    advice = undone.page.get_by_role("status").filter(has_text="looks like a learning rate")
    expect(advice).to_be_visible()
    undone.do(("Total steps", "0"))
    expect(advice).to_have_count(0)  # it was about the last valid curve


def test_added_plateaus_fit_after_the_others(undone):
    for name in ("+ Plateau, in %", "+ in steps", "+ Plateau, in %"):
        undone.do(name)
        expect(undone.page.locator("#stale")).to_be_hidden()
    curve = undone.curve
    assert len(curve.plateaus) == 3
    ((_, length),) = curve.absolute_plateaus
    assert length % 100 == 0


# Opened curves.


def test_opened_curve_with_a_batch_plan_can_be_edited(undone):
    plan = BatchPlan([(0, 8), (40_000, 32)])
    opened = plan.scale(STABLE, 8, reference=32).part(100, 9000)
    edited = plan.scale(STABLE, 8, reference=64).part(200, 9000)
    undone.open_json(opened.to_dict())
    undone.do(("Part: First step", "200"), ("Batch plan: Reference batch", "64"))
    undone.check(edited)
    undone.do(("Part: First step", "9000"))
    message = undone.page.locator("[id='fault-curve-start']")
    expect(message).to_contain_text("start = 9000 must lie in 0")
    undone.do("Remove the part", "Remove the batch plan")
    assert undone.curve == STABLE


def test_opened_formulas_can_be_edited(undone):
    decays = [(4_500, 0.5, "(1-x)^2.5"), (4_000, 0.1, "t^-0.7"), (1_000, 0.0, "1-x^0.75")]
    opened = StagedCurve([(500, 1.0), *decays])
    undone.open_json(opened.to_dict())
    expect(undone.field("Stage 2, shape")).to_have_value("(1-x)^P")
    expect(undone.field("Stage 2, P")).to_have_value("2.5")
    expect(undone.field("Stage 3, P")).to_have_value("0.7")
    undone.do(("Stage 1, steps", "600"))
    undone.check(StagedCurve([(600, 1.0), *decays]))


# What happens between the page and the server.


def expect_busy(design):
    """Wait until the page waits for an answer."""
    expect(design.page.locator("main[aria-busy=true]")).to_be_attached()


def test_late_answers_are_superseded(design):
    """Of the edits during a pending answer, only the last one is asked about, once it arrived."""
    held = design.hold_the_next_answer()
    for steps in (600, 700, 800, 900):
        design.field("Warmup steps").fill(str(steps))
    expect_busy(design)
    (first,) = held
    first.continue_()
    design.check(replace(STABLE, warmup_steps=900))


def test_curve_opened_during_a_pending_answer(design):
    held = design.hold_the_next_answer()
    design.field("Peak learning rate").fill("6e-4")
    design.button("Open…").click()
    textbox = design.dialog.get_by_role("textbox")
    textbox.fill(json.dumps(COSINE.to_dict()))
    design.dialog.locator("button.primary").click()
    expect_busy(design)
    (first,) = held
    first.continue_()
    expect(design.dialog).to_be_hidden()
    design.check(COSINE)
    assert design.peak() == 6e-4


TENTHS = [number / 10 for number in range(1001)]
CALL_EDITS = """async ([tenths, whole]) => {
    const { stepsOfPercentage } = await import("./edits.js");
    return tenths.map(percentage => stepsOfPercentage(percentage, whole));
}"""


@pytest.mark.parametrize("whole", [7, 9_500, 2**31 - 1])
def test_percentages_are_read_as_by_the_library(undone, whole):
    expected = [percent_of(whole, percentage) for percentage in TENTHS]
    assert undone.page.evaluate(CALL_EDITS, [TENTHS, whole]) == expected


# Shapes.


def test_every_decay_shape_can_be_chosen(undone):
    """Formulas have an initial P."""
    decay = undone.field("Decay shape")
    options = decay.locator("option")
    assert options.all_text_contents() == list(SHAPES_ALLOWING_ZERO)
    for name in SHAPES_ALLOWING_ZERO:
        undone.do(("Decay shape", name))
        written = name.replace("P", INITIAL_POWERS.get(name, ""))
        assert undone.curve == replace(STABLE, decay_shape=written)
        power = undone.field("Decay P")
        expect(power).to_be_visible(visible="P" in name)


def test_stages_have_all_shapes(undone):
    undone.do("Edit Stages", ("Stage 2, to", "0.5"))
    options = undone.field("Stage 2, shape").locator("option")
    assert options.all_text_contents() == list(SHAPES)
