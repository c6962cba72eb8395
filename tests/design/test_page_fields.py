"""The fields of the selected curve: what is typed, clicked and chosen gives the curve, and can be undone."""

from dataclasses import replace

import pytest
from playwright.sync_api import Route, expect
from support.design.page import COSINE, CURVES, STABLE, STAGED, Action

from plateau_jax import BatchPlan, Curve, PlateauCurve, StagedCurve
from plateau_jax.numerics.exact import percent_of
from plateau_jax.shapes.known_shapes import INTERPOLATED, SHAPES

pytestmark = pytest.mark.slow

WARMUP, PLATEAU = "Warmup steps", "Plateau 1 in %, "
RISE, HOLD, FALL = STAGED.stages
COOLED = STABLE.cooldown(7000, 1000, shape="linear")
COOLDOWN: list[Action] = [
    "+ Cooldown", ("Cooldown: First step", "7000"), ("Cooldown: Steps", "1000"),
    ("Cooldown: Shape", "linear"),
]  # fmt: skip
NEW_STAGE: list[Action] = [("Stage 2, to", "0.5"), ("Stage 2, shape", "exponential"), "+ Stage"]
FULL = PlateauCurve(
    20_000, warmup_steps=500, warmup_shape="cosine", decay_shape="1-sqrt", plateaus=[(20, 40), (70.5, 1.25)],
    absolute_plateaus=[(19_000, 10)],
)  # fmt: skip
FULL_ACTIONS: list[Action] = [
    ("Total steps", "2e4"), ("Warmup shape", "cosine"), ("Decay shape", "1-sqrt"), (f"{PLATEAU}start", "20"),
    "+ Plateau, in %", ("Plateau 2 in %, start", "70.5"), ("Plateau 2 in %, length", "1.25"),
    "+ in steps", ("Plateau 1 in steps, start", "19_000"), ("Plateau 1 in steps, length", "10"),
]  # fmt: skip
# The curve to edit, the actions, and the curve that they give.
EDITS: list[tuple[Curve, list[Action], Curve]] = [
    (STABLE, [*FULL_ACTIONS, "Remove plateau 1 in %"], replace(FULL, plateaus=[(70.5, 1.25)])),
    (STABLE, [("Decay shape", "1-x^P"), ("P of the decay", "1.50"), ("Final LR / peak", "0.5")],
     replace(STABLE, decay_shape="1-x^1.5", min_lr_ratio=0.5)),
    (STAGED, ["Move stage 3 up", "Move stage 2 up"], StagedCurve([FALL, RISE, HOLD])),
    (STAGED, ["Move stage 1 down", "Move stage 2 down"], StagedCurve([HOLD, FALL, RISE])),
    (STAGED, [*NEW_STAGE, ("Stage 2, steps", "100"), ("Stage 3, steps", "6000"), "Remove stage 2"],
     StagedCurve([RISE, (6_000, 0.5, "exponential"), FALL])),
    (STABLE, [*COOLDOWN, "+ Continuation", ("Continuation: Scale", "0.25")], COOLED.then(COOLED, scale=0.25)),
    (STABLE, [*COOLDOWN, "+ Continuation", "Remove the continuation", "Remove the cooldown"], STABLE),
    # Percentages are those of the run.
    (STABLE, [("Total steps", "1000"), (WARMUP, "32.3%")],
     replace(STABLE, total_steps=1_000, warmup_steps=323)),
    (STABLE, ["+ in steps", ("Plateau 1 in steps, start", "80%"), ("Plateau 1 in steps, length", "2.5 %")],
     replace(STABLE, absolute_plateaus=[(8_000, 250)])),
    (STABLE, ["+ Cooldown", ("Cooldown: First step", "65%"), ("Cooldown: Steps", "35%")],
     STABLE.cooldown(6_500, 3_500)),
    (STAGED, [("Stage 3, steps", "20%")], StagedCurve([RISE, HOLD, (1_625, 0.0, "1-sqrt")])),
    # Added curves have the selected length and warmup; a copy is that of the last valid curve.
    (STABLE, [(WARMUP, "20000"), "a copy"], STABLE),
    (STAGED, ["a cosine"], COSINE),
    (STAGED, [*COOLDOWN, "a line to 0"], PlateauCurve(8_000, warmup_steps=500, decay_shape="linear")),
    (COSINE, ["stable, then a cooldown"], replace(COSINE, decay_shape="1-sqrt", plateaus=[(0, 80)])),
    (STABLE, [("Initial LR / peak", "0.25"), ("Warmup shape", "cosine"), "stages"],
     StagedCurve([(500, 1.0, "cosine"), (6_650,), (2_850, 0.0, "1-sqrt")], start=0.25)),
]  # fmt: skip


def test_edits_give_the_curve_and_can_be_undone(design):
    for begin, actions, expected in EDITS:
        (name,) = (name for name, curve in CURVES.items() if curve == begin)
        design.do(f"Edit {name}")
        design.do(*actions)
        design.check(expected)
        design.undo_all()
        assert design.curve == begin, actions


# The actions, of which the last one is wrong; the place of the message, and its text.
FAULTS: list[tuple[list[Action], str, str]] = [
    ([(WARMUP, "20000")], "curve-warmup_steps", "warmup_steps = 20000 must lie"),
    ([(WARMUP, "five hundred")], "curve-warmup_steps", "warmup_steps = 'five hundred' must be an integer"),
    ([("Total steps", "0")], "curve-total_steps", "total_steps = 0 must lie"),
    ([("Final LR / peak", "2")], "curve-min_lr_ratio", "min_lr_ratio = 2 must lie"),
    ([("Peak learning rate", "6e-")], "peak", "peak = '6e-' must be a number"),
    ([(f"{PLATEAU}start", "200")], "curve-plateaus-0", "(200, 40) must lie in 0 … 100 %"),
    *(([(f"{PLATEAU}{part}", text)], "curve-plateaus-0", "must")
      for part in ("start", "length") for text in ("", "0x10", "1e300")),
    *(([("Decay shape", "1-x^P"), ("P of the decay", text)], "curve-decay_shape", "must")
      for text in ("", "-1", "99", "two")),
    ([("Decay shape", "1-x^P"), "+ Cooldown", ("Cooldown: Steps", "0")], "curve-steps", "steps = 0 must"),
    (["+ Continuation", ("Continuation: Scale", "2")], "curve-scale", "scale = 2 must lie in (0, 1]"),
]  # fmt: skip


def test_wrong_fields_have_a_message_and_keep_the_curve(design):
    for actions, place, message in FAULTS:
        *before, (label, text) = actions
        design.do(*before)
        valid, drawn = design.curve, design.drawn()
        design.do((label, text))
        design.field(label).blur()
        design.settle()
        expect(design.field(label)).to_have_attribute("aria-invalid", "true")
        expect(design.field(label)).to_have_value(text)
        shown = design.page.locator(f"[id='{design.field(label).get_attribute('aria-describedby')}']")
        assert shown.get_attribute("id") == f"fault-{place}"
        expect(shown).to_contain_text(message)
        expect(design.page.locator("#stale")).to_be_visible()
        assert (design.curve, design.drawn()) == (valid, drawn), actions
        design.undo_all()
        expect(design.page.locator("[aria-invalid=true]")).to_have_count(0)
        expect(design.page.locator("#stale")).to_be_hidden()


def test_number_gets_no_message_while_it_is_typed(design):
    field = design.field("Peak learning rate")
    field.fill("")
    field.press_sequentially("6e-")
    design.settle()
    expect(design.page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)
    field.press_sequentially("4")
    assert "peak_value=0.0006" in design.code


def test_likely_mistakes_are_reported(design):
    design.do(("Final LR / peak", "3e-5"))
    advice = design.page.get_by_role("status").filter(has_text="looks like a learning rate")
    expect(advice).to_be_visible()
    design.do(("Total steps", "0"))
    expect(advice).to_have_count(0)  # it was about the last valid curve


def test_added_plateaus_fit_after_the_others(design):
    for name in ("+ Plateau, in %", "+ in steps", "+ Plateau, in %"):
        design.do(name)
        expect(design.page.locator("#stale")).to_be_hidden()
    curve = design.curve
    assert (len(curve.plateaus), curve.absolute_plateaus[0][1] % 100) == (3, 0)


def test_opened_curves_can_be_edited(design):
    plan = BatchPlan([(0, 8), (40_000, 32)])
    design.open_json(plan.scale(STABLE, 8, reference=32).part(100, 9000).to_dict())
    design.do(("Part: First step", "200"), ("Batch plan: Reference batch", "64"))
    design.check(plan.scale(STABLE, 8, reference=64).part(200, 9000))
    design.do(("Part: First step", "9000"))
    expect(design.page.locator("[id='fault-curve-start']")).to_contain_text("start = 9000 must lie in 0")
    design.do("Remove the part", "Remove the batch plan")
    assert design.curve == STABLE
    formulas = [(500, 1.0), (4_500, 0.5, "(1-x)^2.5"), (4_000, 0.1, "t^-0.7"), (1_000, 0.0, "1-x^0.75")]
    design.open_json(StagedCurve(formulas).to_dict())
    for label, text in (("Stage 2, shape", "(1-x)^P"), ("Stage 2, P", "2.5"), ("Stage 3, P", "0.7")):
        expect(design.field(label)).to_have_value(text)
    design.do(("Stage 1, steps", "600"))
    design.check(StagedCurve([(600, 1.0), *formulas[1:]]))


def test_late_answers_are_superseded(design):
    """Of the edits made while an answer is pending, only the last one is asked about, once it has arrived."""
    held: list[Route] = []
    design.page.route("**/page", lambda route: route.continue_() if held else held.append(route))
    for steps in (600, 700, 800, 900):
        design.field(WARMUP).fill(str(steps))
    expect(design.page.locator("main[aria-busy=true]")).to_be_attached()
    (first,) = held
    first.continue_()
    design.check(replace(STABLE, warmup_steps=900))


def test_percentages_are_read_as_by_the_library(design):
    tenths = [number / 10 for number in range(1001)]
    wholes = (1, 7, 95, 9_500, 2**31 - 1)
    steps_of = {whole: [percent_of(whole, percentage) for percentage in tenths] for whole in wholes}
    probes = {whole: {*steps_of[whole][::7], 0, 1, whole // 3, whole - 1, whole} for whole in wholes}
    pairs = [(steps, whole) for whole in wholes for steps in probes[whole]]
    steps, rounded = design.page.evaluate(
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


def test_every_shape_can_be_chosen(design):
    """Or with the keyboard. Formulas have an initial P."""
    design.field("Decay shape").focus()
    design.press("Space", "ArrowDown", "Enter")
    expect(design.field("Decay shape")).to_be_focused()
    assert design.curve == replace(STABLE, decay_shape="cosine")
    for shape in ("cosine", "linear"):
        design.do(("Warmup shape", shape))
        assert design.curve.warmup_shape == shape
    decay = design.field("Decay shape")
    names = [*INTERPOLATED]
    assert decay.locator("option").all_text_contents() == names
    for name in names:
        design.do(("Decay shape", name))
        assert design.curve == replace(STABLE, decay_shape=name.replace("P", "2"))
        expect(design.field("P of the decay")).to_be_visible(visible="P" in name)
    design.do("Edit Stages", ("Stage 2, to", "0.5"))
    names = [*SHAPES]
    assert design.field("Stage 2, shape").locator("option").all_text_contents() == names
    for name in names:
        design.do(("Stage 2, shape", name))
        shape = name.replace("P", "0.5" if name == "t^-P" else "2")
        assert design.curve == StagedCurve([RISE, (6_000, 0.5, shape), FALL])
