"""The page in a browser: the JSON and the picture show what the user drags, types or presses."""

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from support.design.browser import chromium
from support.design.design import ask, served

from plateau_jax import Curve, PlateauCurve, StagedCurve, compare
from plateau_jax.analysis.comparison import NOTE
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.questions import MAX_CURVES
from plateau_jax.design.server import Server

pytestmark = pytest.mark.slow

PEAK = 3e-4
COSINE = PlateauCurve(10_000, warmup_steps=500)
STABLE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(10, 40)], decay_shape="linear")
STAGED = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0, "1-sqrt")])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(initial_curves([("Cosine", COSINE), ("Stages", STAGED), ("Stable", STABLE)], PEAK)) as server:
        yield server


@pytest.fixture
def requested() -> list[str]:
    return []


@pytest.fixture(params=[(1320, 1000, "light"), (390, 844, "dark")], ids=["wide", "phone"])
def page(
    browser: Browser, server: Server, requested: list[str], request: pytest.FixtureRequest
) -> Iterator[Page]:
    """The page with STABLE selected. Afterwards, check for errors and for requests to other hosts."""
    width, height, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))  # such as of the content security policy
    refusal = "Failed to load resource: the server responded"  # Chromium logs this if the server refuses
    page.goto(server.address)
    wait_until_settled(page)
    yield page
    assert [text for text in errors if not text.startswith(refusal)] == []
    assert all(address.startswith(server.address) for address in requested)
    context.close()


def wait_until_settled(page: Page) -> None:
    """Wait until every answer has arrived."""
    expect(page.locator("main[aria-busy=false]")).to_be_attached()
    expect(page.locator("#curves tbody tr").first.locator("[data-figure=bound]")).to_be_attached()


def curve_of_json(page: Page) -> Curve:
    """Parse the JSON on the page."""
    wait_until_settled(page)
    page.get_by_role("tab", name="JSON").click()
    text = page.locator("#code").text_content() or ""
    page.get_by_role("tab", name="optax").click()
    return Curve.from_dict(json.loads(text))


def curve_of_optax_code(page: Page) -> Curve:
    """Run the code for optax on the page, and return its curve."""
    wait_until_settled(page)
    code = page.locator("#code").text_content() or ""
    names: dict[str, Curve] = {}
    exec(code, names)
    return names["curve"]


def handle(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


def centre(handle: Locator) -> tuple[float, float]:
    handle.scroll_into_view_if_needed()
    box = handle.locator(".mark").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def position_in_picture(page: Page, name: str) -> tuple[float, float]:
    """Return the position of a handle, in pixels of the picture."""
    x, y = re.findall(r"[-\d.]+", handle(page, name).get_attribute("transform") or "")
    return float(x), float(y)


def drag(page: Page, name: str, right: float, down: float) -> None:
    x, y = centre(handle(page, name))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right / 2, y + down / 2, steps=3)
    page.mouse.move(x + right, y + down, steps=3)
    page.mouse.up()
    wait_until_settled(page)


def assert_shown(page: Page, curve: Curve) -> None:
    """Check that the code to copy, the JSON and the picture show this curve, at every step."""
    steps = np.arange(curve.total_steps + 2)
    assert np.array_equal(curve_of_optax_code(page)(steps), curve(steps))
    assert curve_of_json(page) == curve
    points = page.locator("polyline.selected").get_attribute("points") or ""
    drawn = np.array([[float(number) for number in point.split(",")] for point in points.split()])
    origin, top = axes_in_picture(page)
    shown = (origin[1] - drawn[:, 1]) / (origin[1] - top)
    nearest = np.rint((drawn[:, 0] - origin[0]) / (drawn[-1, 0] - origin[0]) * curve.total_steps).astype(int)
    # Positions are rounded to a tenth of a pixel, which is several steps: compare with all steps nearby.
    margin = curve.total_steps // 200 + 1
    nearby = curve(np.clip(nearest[:, None] + np.arange(-margin, margin + 1), 0, curve.total_steps))
    assert np.all(shown >= nearby.min(1) - 0.005)
    assert np.all(shown <= nearby.max(1) + 0.005)


def axes_in_picture(page: Page) -> tuple[tuple[float, float], float]:
    """Return the pixels of step 0 at learning rate 0, and the height of the peak."""
    axis = page.locator("line.axis").first
    x, y = (float(axis.get_attribute(name) or "nan") for name in ("x1", "y1"))
    return (x, y), position_in_picture(page, "Peak learning rate")[1]


DRAGGED = [
    ("Plateau 1, end", 40, 0, lambda curve: curve.plateaus[0][0] == 10 and curve.plateaus[0][1] > 40),
    ("Plateau 1, start", -10, 0, lambda curve: sum(curve.plateaus[0]) == 50 and curve.plateaus[0][0] < 10),
    ("Plateau 1, place", 40, 0, lambda curve: curve.plateaus[0][0] > 10 and curve.plateaus[0][1] == 40),
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
        assert after[0] - before[0] == pytest.approx(right, abs=3)
        if down:
            assert after[1] - before[1] == pytest.approx(down, abs=3)


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
    ("Plateau 1, end", "ArrowRight", {"plateaus": [(10, 41)]}),
    ("Plateau 1, end", "PageDown", {"plateaus": [(10, 30)]}),
    ("Plateau 1, start", "ArrowLeft", {"plateaus": [(9, 41)]}),
    ("Plateau 1, place", "Shift+ArrowUp", {"plateaus": [(10.1, 40)]}),
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
    assert curve_of_json(page).plateaus == ((10, 43),)


def test_keys_before_an_answer_are_not_lost(page):
    page.get_by_label("Final LR, share of peak").fill("0.25")
    handle(page, "Plateau 1, end").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert curve_of_json(page) == PlateauCurve(
        **{**STABLE.to_dict(), "min_lr_ratio": 0.25, "plateaus": [(10, 46)]}
    )


NAME_OF_FOCUSED = """
() => {
    const { id, dataset, ariaLabel, textContent } = document.activeElement;
    return id || dataset.path || ariaLabel || textContent;
}
"""


def test_tab_reaches_every_control_by_name(page):
    page.mouse.move(0, 0)
    reached: set[str] = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(NAME_OF_FOCUSED))
    names = (
        "tab-optax",
        "copy",
        "open",
        "Peak learning rate",
        "Plateau 1, place",
        "Step at which to read learning rates",
    )
    assert {*names, "curve/decay_shape", "a cosine", "Edit Stable", "+ Cooldown"} <= reached
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, select, button, [role=slider]')]"
        ".filter((node) => !node.ariaLabel && !node.labels?.length && !node.textContent.trim())"
        ".map((node) => node.outerHTML)"
    )
    assert unnamed == []


def test_invalid_field_keeps_the_last_valid_curve(page, server):
    before = page.locator("polyline.selected").get_attribute("points")
    field = page.get_by_label("Warmup steps")
    field.fill("20000")
    wait_until_settled(page)
    invalid = {**STABLE.to_dict(), "warmup_steps": 20_000}
    message = ask(server, "/curve", {"curve": invalid, "peak": PEAK})["fault"]["message"]
    assert message.startswith("warmup_steps = 20000 must lie")
    expect(field).to_have_attribute("aria-invalid", "true")
    shown = page.locator(f"#{field.get_attribute('aria-describedby')}")
    expect(shown).to_have_text(message)
    expect(page.locator("#stale")).to_be_visible()
    assert curve_of_json(page) == STABLE
    assert page.locator("polyline.selected").get_attribute("points") == before
    field.fill("five hundred")
    wait_until_settled(page)
    expect(shown).to_contain_text("'five hundred' must be an integer")
    field.fill("600")
    wait_until_settled(page)
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#stale")).to_be_hidden()
    assert_shown(page, PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 600}))


def test_invalid_plateau_has_a_message_in_its_row(page):
    page.get_by_label("Plateau 1 in %, start").fill("200")
    wait_until_settled(page)
    expect(page.get_by_label("Plateau 1 in %, length")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[id='fault-curve-plateaus-0']")).to_contain_text("must lie in 0 … 100 %")


def test_fields_describe_the_curve(page):
    for label, text in (("Total steps", "2e4"), ("Warmup shape", "cosine"), ("Decay shape", "1-sqrt")):
        page.get_by_label(label).fill(text)
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
    page.get_by_label("Stage 2, shape").fill("exponential")
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
    page.get_by_label("Cooldown: Shape").fill("linear")
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


def test_curves_are_compared_with_the_first(page):
    def figures() -> list[list[str]]:
        wait_until_settled(page)
        rows = page.locator("#curves tbody tr").all()
        return [
            [row.locator(f"[data-figure={name}] b").inner_text() for name in ("bound", "peak-ratio")]
            for row in rows
        ]

    def expected(*curves: Curve) -> list[list[str]]:
        table = compare(*curves)
        return [
            [f"× {number:.3f}" for number in pair] for pair in zip(table.bounds, table.peaks, strict=True)
        ]

    assert figures() == expected(COSINE, STAGED, STABLE)
    expect(page.locator("#note")).to_have_text(NOTE)
    expect(page.locator("polyline")).to_have_count(3)
    drag(page, "Plateau 1, end", 40, 0)
    moved = curve_of_json(page)
    assert figures() == expected(COSINE, STAGED, moved)
    page.get_by_role("button", name="Compare the others with Stages").click()
    assert figures() == expected(STAGED, COSINE, moved)
    page.get_by_role("button", name="Hide Cosine").click()
    expect(page.locator("polyline")).to_have_count(2)
    page.get_by_role("button", name="Remove Cosine").click()
    assert figures() == expected(STAGED, moved)
    page.get_by_role("button", name="Use the best peak for Stable").click()
    wait_until_settled(page)
    peak = PEAK * compare(STAGED, moved).peaks[1]
    assert float(page.get_by_role("textbox", name="Peak learning rate").input_value()) == pytest.approx(
        peak, rel=5e-3
    )
    page.get_by_role("button", name="a line to 0", exact=True).click()
    line = PlateauCurve(10_000, warmup_steps=500, decay_shape="linear")
    assert curve_of_json(page) == line
    assert figures() == expected(STAGED, moved, line)


def test_pointer_reads_the_learning_rates(page):
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"])
    wait_until_settled(page)
    readout = page.locator("#readout")
    expect(readout).to_contain_text("Stable")

    def read_values() -> list[float]:
        numbers = re.sub(r"(?<=\d)\u202f", "", readout.inner_text())
        step, *values = map(float, re.findall(r"(?:step|Cosine|Stages|Stable)\s+([\d.e-]+)", numbers))
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


def test_code_is_copied_to_the_clipboard(page):
    for tab, part in (
        ("optax", "optax_schedule("),
        ("PyTorch", "lambda_lr("),
        ("JSON", '"plateaus": [[10, 40]]'),
    ):
        page.get_by_role("tab", name=tab).click()
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text == page.locator("#code").text_content()
        assert part in text


@pytest.mark.parametrize("source", ["pasted", "file"])
def test_json_can_be_opened(page, tmp_path, source):
    curve = STAGED.cooldown(3_000, 500).then(STABLE, scale=0.125)
    page.get_by_role("button", name="Open…").click()
    dialog = page.get_by_role("dialog")
    pasted = dialog.get_by_role("textbox")
    for text, message in (
        ("{", "not JSON"),
        ('{"total_steps": 0}', "total_steps = 0 must lie"),
        (" " * 2**21, "too large"),
    ):
        pasted.evaluate("(box, text) => (box.value = text)", text)
        dialog.get_by_role("button", name="Open").click()
        expect(dialog.get_by_role("alert")).to_contain_text(message)
    if source == "file":
        path = tmp_path / "saved.json"
        path.write_text(json.dumps(curve.to_dict()))
        dialog.get_by_label("or choose a file").set_input_files(path)
        expect(pasted).to_have_value(path.read_text())
    else:
        pasted.fill(json.dumps(curve.to_dict()))
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_be_hidden()
    assert_shown(page, curve)
    expect(page.locator("#curves tbody tr")).to_have_count(4)


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


def test_selecting_a_curve_is_not_an_undo_step(page):
    page.get_by_label("Warmup steps").fill("700")
    page.get_by_role("radio", name="Edit Cosine").check()
    assert curve_of_json(page) == COSINE
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    assert curve_of_json(page) == STABLE


def test_curves_can_be_added_up_to_the_limit(page):
    for number in range(4, MAX_CURVES + 1):
        page.get_by_role("button", name="a copy", exact=True).click()
        expect(page.locator("#curves tbody tr")).to_have_count(number)
    for name in ("a copy", "a cosine", "Open…"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    wait_until_settled(page)
    expect(page.locator("#curves tbody [data-figure=bound]")).to_have_count(MAX_CURVES)


def test_likely_mistakes_are_reported(page):
    page.get_by_label("Final LR, share of peak").fill("3e-5")
    wait_until_settled(page)
    expect(page.get_by_role("status").filter(has_text="looks like a learning rate")).to_be_visible()


def test_reload_keeps_the_curves(page):
    page.get_by_label("Warmup steps").fill("700")
    curve = curve_of_json(page)
    page.reload()
    assert curve_of_json(page) == curve


def test_page_works_without_storage(page):
    """If storage is full or blocked, the browser asks before it reloads the tab."""
    page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full') }")
    page.reload()
    wait_until_settled(page)
    page.get_by_label("Warmup steps").fill("700")
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 700})
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.reload()
    assert asked == ["beforeunload"]
    assert curve_of_json(page) == STABLE


def test_added_stages_start_at_peak_without_warmup(page):
    for _ in range(2):  # the second time after a staged curve, which has no warmup
        page.get_by_role("button", name="stages", exact=True).click()
        expect(page.get_by_label("Stage 1, steps")).to_be_visible()
        assert curve_of_json(page)(np.arange(10_000)).max() == 1


def test_shapes_fit_into_their_fields(page):
    page.get_by_role("radio", name="Edit Stages").check()
    shapes = "1-x^0.75", "(1-x)^2.5", "exponential"
    for number, shape in enumerate(shapes, 1):
        field = page.get_by_label(f"Stage {number}, shape")
        field.fill(shape)
        field.blur()
        assert field.evaluate("field => field.scrollWidth <= field.clientWidth")


def test_page_does_not_scroll_sideways(page):
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name="+ Continuation").last.click()
    wait_until_settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


KINDS = {
    "Cosine": COSINE,
    "Stable": STABLE,
    "Absolute plateau": PlateauCurve(10_000, absolute_plateaus=[(8_000, 500)]),
    "Stages": STAGED,
    "Cooldown": COSINE.cooldown(6_000, 1_000),
    "Continuation": COSINE.then(STAGED.cooldown(4_000, 1_000)).then(STABLE, scale=0.5),
}
CUT_OFF = """
() => [...document.querySelectorAll(".card :is(a, button, input, select, textarea)")]
    .filter((control) => control.checkVisibility())
    .filter((control) => {
        const card = control.closest(".card").getBoundingClientRect();
        const { left, right, top, bottom } = control.getBoundingClientRect();
        return left < card.left || right > card.right || top < card.top || bottom > card.bottom;
    })
    .map((control) => control.ariaLabel || control.dataset.path || control.textContent)
"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (720, 450), (390, 844)])
def test_every_control_lies_inside_its_card(browser, width, height):
    with served(initial_curves(list(KINDS.items()), PEAK)) as server:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(server.address)
        for kind in KINDS:
            page.get_by_role("radio", name=f"Edit {kind}", exact=True).check()
            wait_until_settled(page)
            assert page.evaluate(CUT_OFF) == [], kind
        page.close()


def test_stopped_server_is_reported(browser, server):
    page = browser.new_page()
    page.goto(server.address)
    wait_until_settled(page)
    page.route("**/*", lambda route: route.abort())
    page.get_by_label("Warmup steps").fill("700")
    expect(page.get_by_role("alert").filter(has_text="The server does not answer")).to_be_visible()
    page.unroute_all()
    page.get_by_label("Warmup steps").fill("800")
    assert curve_of_json(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 800})
    expect(page.locator("#trouble")).to_be_hidden()
    page.close()
