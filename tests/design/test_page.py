"""The page in a browser: what is dragged, typed or pressed is what the JSON and the picture show."""

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
from plateau_jax.design.answers import MOST_CURVES, start
from plateau_jax.design.server import Server

pytestmark = pytest.mark.slow

PEAK = 3e-4
COSINE = PlateauCurve(10_000, warmup_steps=500)
STABLE = PlateauCurve(10_000, warmup_steps=500, plateaus=[(10, 40)], decay_shape="linear")
STAGED = StagedCurve([(500, 1.0), (6_000,), (3_500, 0.0, "1-sqrt")])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(start([("Cosine", COSINE), ("Stages", STAGED), ("Stable", STABLE)], PEAK)) as found:
        yield found


@pytest.fixture
def requested() -> list[str]:
    return []


@pytest.fixture(params=[(1320, 1000, "light"), (390, 844, "dark")], ids=["wide", "phone"])
def page(
    browser: Browser, server: Server, requested: list[str], request: pytest.FixtureRequest
) -> Iterator[Page]:
    """The page, on which STABLE is edited. Afterwards nothing went elsewhere, and nothing failed."""
    width, height, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    found = context.new_page()
    wrong: list[str] = []
    found.on("request", lambda request: requested.append(request.url))
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("console", lambda message: wrong.append(message.text))  # such as of the content security policy
    refused = "Failed to load resource: the server responded"  # what Chromium says of a refusal of ours
    found.goto(server.address)
    settled(found)
    yield found
    assert [text for text in wrong if not text.startswith(refused)] == []
    assert all(address.startswith(server.address) for address in requested)
    context.close()


def settled(page: Page) -> None:
    """Every answer has come."""
    expect(page.locator("main[aria-busy=false]")).to_be_attached()
    expect(page.locator("#curves tbody tr").first.locator("[data-figure=bound]")).to_be_attached()


def described(page: Page) -> Curve:
    """The curve of the JSON on the page."""
    settled(page)
    page.get_by_role("tab", name="JSON").click()
    text = page.locator("#code").text_content() or ""
    page.get_by_role("tab", name="optax").click()
    return Curve.from_dict(json.loads(text))


def copied(page: Page) -> Curve:
    """The curve that the lines for optax make."""
    settled(page)
    lines = page.locator("#code").text_content() or ""
    names: dict[str, Curve] = {}
    exec(lines, names)
    return names["curve"]


def handle(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


def centre(handle: Locator) -> tuple[float, float]:
    handle.scroll_into_view_if_needed()
    box = handle.locator(".mark").bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def in_picture(page: Page, name: str) -> tuple[float, float]:
    """Where a handle is, in pixels of the picture."""
    x, y = re.findall(r"[-\d.]+", handle(page, name).get_attribute("transform") or "")
    return float(x), float(y)


def drag(page: Page, name: str, right: float, down: float) -> None:
    x, y = centre(handle(page, name))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right / 2, y + down / 2, steps=3)
    page.mouse.move(x + right, y + down, steps=3)
    page.mouse.up()
    settled(page)


def assert_shown(page: Page, curve: Curve) -> None:
    """The lines to copy, the JSON and the picture are of one curve, at every step."""
    steps = np.arange(curve.total_steps + 2)
    assert np.array_equal(copied(page)(steps), curve(steps))
    assert described(page) == curve
    points = page.locator("polyline.chosen").get_attribute("points") or ""
    drawn = np.array([[float(number) for number in point.split(",")] for point in points.split()])
    origin, top = centre_of_axes(page)
    shown = (origin[1] - drawn[:, 1]) / (origin[1] - top)
    at = np.rint((drawn[:, 0] - origin[0]) / (drawn[-1, 0] - origin[0]) * curve.total_steps).astype(int)
    # A tenth of a pixel across is some steps: the drawn value lies between those of steps next to it.
    beside = curve.total_steps // 200 + 1
    near = curve(np.clip(at[:, None] + np.arange(-beside, beside + 1), 0, curve.total_steps))
    assert np.all(shown >= near.min(1) - 0.005)
    assert np.all(shown <= near.max(1) + 0.005)


def centre_of_axes(page: Page) -> tuple[tuple[float, float], float]:
    """Where step 0 and rate 0 are, and the height of the peak: in pixels of the picture."""
    axis = page.locator("line.axis").first
    x, y = (float(axis.get_attribute(name) or "nan") for name in ("x1", "y1"))
    return (x, y), in_picture(page, "Peak learning rate")[1]


DRAGGED = [
    ("Plateau 1, end", 40, 0, lambda curve: curve.plateaus[0][0] == 10 and curve.plateaus[0][1] > 40),
    ("Plateau 1, start", -10, 0, lambda curve: sum(curve.plateaus[0]) == 50 and curve.plateaus[0][0] < 10),
    ("Plateau 1, place", 40, 0, lambda curve: curve.plateaus[0][0] > 10 and curve.plateaus[0][1] == 40),
    ("Warmup, end", 30, 0, lambda curve: curve.warmup_steps > 500),
    ("First rate", 0, -40, lambda curve: curve.init_lr_ratio > 0),
    ("Last rate", 0, -40, lambda curve: curve.min_lr_ratio > 0 and curve.total_steps == 10_000),
    ("End of the curve", -40, 0, lambda curve: curve.total_steps < 10_000 and curve.min_lr_ratio == 0),
]


@pytest.mark.parametrize(("name", "right", "down", "holds"), DRAGGED, ids=[name for name, *_ in DRAGGED])
def test_what_was_dragged_is_what_the_json_says(page, name, right, down, holds):
    before = in_picture(page, name)
    drag(page, name, right, down)
    curve = described(page)
    assert holds(curve)
    assert_shown(page, curve)
    if name != "End of the curve":  # after which the axes change
        after = in_picture(page, name)
        # The multiple of a unit that is nearest to the pointer; the place of a plateau also moves its level.
        assert after[0] - before[0] == pytest.approx(right, abs=3)
        if down:
            assert after[1] - before[1] == pytest.approx(down, abs=3)


def test_the_peak_is_dragged_too(page):
    drag(page, "Peak learning rate", 0, 40)
    peak = float(page.get_by_role("textbox", name="Peak learning rate").input_value())
    assert 1e-4 < peak < PEAK
    assert f"peak_value={peak!r}" in page.locator("#code").text_content()
    assert_shown(page, STABLE)


def test_a_plateau_can_be_dragged_far_and_back(page):
    """A drag counts from where it began, also after it has been as far as it goes."""
    x, y = centre(handle(page, "Plateau 1, end"))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 2000, y, steps=4)
    settled(page)
    page.mouse.move(x, y, steps=4)
    page.mouse.up()
    assert described(page) == STABLE
    expect(page.locator(".fault:not(:empty):not([hidden])")).to_have_count(0)


def test_a_drag_is_one_step_of_undo(page):
    undo, redo = (page.get_by_role("button", name=name) for name in ("Undo", "Redo"))
    expect(undo).to_be_disabled()
    drag(page, "Plateau 1, end", 40, 0)
    first = described(page)
    drag(page, "Plateau 1, place", 20, 0)
    second = described(page)
    undo.click()
    assert described(page) == first
    page.keyboard.press("Control+z")
    assert described(page) == STABLE
    expect(undo).to_be_disabled()
    page.keyboard.press("Control+Shift+z")
    assert described(page) == first
    redo.click()
    assert described(page) == second
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
    ("Last rate", "ArrowUp", {"min_lr_ratio": 0.01}),
    ("Last rate", "PageUp", {"min_lr_ratio": 0.1}),
    ("End of the curve", "ArrowDown", {"total_steps": 9900}),
]


@pytest.mark.parametrize(("name", "key", "changed"), KEYS, ids=[f"{name} {key}" for name, key, _ in KEYS])
def test_handles_are_sliders_for_the_keyboard(page, name, key, changed):
    slider = handle(page, name)
    slider.focus()
    page.keyboard.press(key)
    wanted = PlateauCurve(**{**STABLE.to_dict(), **changed})
    assert described(page) == wanted
    assert_shown(page, wanted)
    low, now, high = (float(slider.get_attribute(f"aria-value{part}")) for part in ("min", "now", "max"))
    assert low <= now <= high
    assert slider.get_attribute("aria-valuetext")


def test_keys_that_follow_one_another_add_up(page):
    handle(page, "Plateau 1, end").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        settled(page)
    expect(handle(page, "Plateau 1, end")).to_be_focused()
    assert described(page).plateaus == ((10, 43),)


def test_no_key_is_lost_before_its_answer_has_come(page):
    page.get_by_label("Last rate, share of peak").fill("0.25")
    handle(page, "Plateau 1, end").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert described(page) == PlateauCurve(
        **{**STABLE.to_dict(), "min_lr_ratio": 0.25, "plateaus": [(10, 46)]}
    )


WHAT_HAS_THE_FOCUS = """
() => {
    const { id, dataset, ariaLabel, textContent } = document.activeElement;
    return id || dataset.path || ariaLabel || textContent;
}
"""


def test_every_control_is_reached_by_tab_and_has_a_name(page):
    page.mouse.move(0, 0)
    found: set[str] = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        found.add(page.evaluate(WHAT_HAS_THE_FOCUS))
    names = "tab-optax", "copy", "open", "Peak learning rate", "Plateau 1, place", "Step to read the rates at"
    assert {*names, "curve/decay_shape", "a cosine", "Edit Stable", "+ Cooldown"} <= found
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, select, button, [role=slider]')]"
        ".filter((one) => !one.ariaLabel && !one.labels?.length && !one.textContent.trim())"
        ".map((one) => one.outerHTML)"
    )
    assert unnamed == []


def test_a_wrong_field_has_its_message_and_the_last_valid_curve_stays(page, server):
    before = page.locator("polyline.chosen").get_attribute("points")
    field = page.get_by_label("Warmup steps")
    field.fill("20000")
    settled(page)
    wrong = {**STABLE.to_dict(), "warmup_steps": 20_000}
    message = ask(server, "/curve", {"curve": wrong, "peak": PEAK})["fault"]["message"]
    assert message.startswith("warmup_steps = 20000 must lie")
    expect(field).to_have_attribute("aria-invalid", "true")
    beside = page.locator(f"#{field.get_attribute('aria-describedby')}")
    expect(beside).to_have_text(message)
    expect(page.locator("#stale")).to_be_visible()
    assert described(page) == STABLE
    assert page.locator("polyline.chosen").get_attribute("points") == before
    field.fill("five hundred")
    settled(page)
    expect(beside).to_contain_text("'five hundred' must be an integer")
    field.fill("600")
    settled(page)
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#stale")).to_be_hidden()
    assert_shown(page, PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 600}))


def test_a_wrong_plateau_has_its_message_in_its_row(page):
    page.get_by_label("Plateau 1 in %, start").fill("200")
    settled(page)
    expect(page.get_by_label("Plateau 1 in %, length")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("[id='fault-curve-plateaus-0']")).to_contain_text("must lie in 0 … 100 %")


def test_fields_describe_a_curve(page):
    for label, text in (("Total steps", "2e4"), ("Warmup shape", "cosine"), ("Decay shape", "1-sqrt")):
        page.get_by_label(label).fill(text)
    page.get_by_label("Plateau 1 in %, start").fill("20")
    page.get_by_role("button", name="+ Plateau, in %").click()
    page.get_by_label("Plateau 2 in %, start").fill("70.5")
    page.get_by_label("Plateau 2 in %, length").fill("1.25")
    page.get_by_role("button", name="+ in steps").click()
    page.get_by_label("Plateau 1 in steps, start").fill("19_000")
    page.get_by_label("Plateau 1 in steps, length").fill("10")
    wanted = PlateauCurve(
        20_000,
        warmup_steps=500,
        warmup_shape="cosine",
        decay_shape="1-sqrt",
        plateaus=[(20, 40), (70.5, 1.25)],
        absolute_plateaus=[(19_000, 10)],
    )
    assert described(page) == wanted
    assert_shown(page, wanted)
    page.get_by_role("button", name="Remove plateau 1 in %").click()
    assert described(page) == PlateauCurve(**{**wanted.to_dict(), "plateaus": [(70.5, 1.25)]})


def test_stages_are_edited_reordered_and_dragged(page):
    page.get_by_role("radio", name="Edit Stages").check()
    assert described(page) == STAGED
    first, second, third = STAGED.stages
    page.get_by_role("button", name="Move stage 3 up").click()
    expect(page.get_by_role("button", name="Move stage 2 up")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Stage 1, steps")).to_be_focused()
    assert described(page) == StagedCurve([third, first, second])
    page.get_by_role("button", name="Move stage 1 down").click()
    page.get_by_role("button", name="Move stage 2 down").click()
    assert described(page) == STAGED
    page.get_by_label("Stage 2, to").fill("0.5")
    page.get_by_label("Stage 2, shape").fill("exponential")
    page.get_by_role("button", name="+ Stage").click()
    page.get_by_label("Stage 4, steps").fill("100")
    stages = [first, (6_000, 0.5, "exponential"), third, (100,)]
    assert described(page) == StagedCurve(stages)
    page.get_by_role("button", name="Remove stage 4").click()
    wanted = StagedCurve(stages[:3])
    assert_shown(page, wanted)
    drag(page, "Stage 2, end", -30, 0)
    curve = described(page)
    assert curve.total_steps == wanted.total_steps
    assert curve.stages[1].steps < 6_000 < curve.stages[1].steps + curve.stages[2].steps
    drag(page, "Stage 2, level", 0, -20)
    curve = described(page)
    assert curve.stages[1].to > 0.5
    assert_shown(page, curve)


def test_cooldowns_and_continuations_are_made_edited_and_dragged(page):
    page.get_by_role("button", name="+ Cooldown").click()
    page.get_by_label("Cooldown: First step").fill("7000")
    page.get_by_label("Cooldown: Steps").fill("1000")
    page.get_by_label("Cooldown: Shape").fill("linear")
    cooled = STABLE.cooldown(7000, 1000, shape="linear")
    assert described(page) == cooled
    drag(page, "Cooldown, start", -20, 0)
    dragged = described(page)
    assert dragged.at < 7000
    assert dragged.steps == 1000
    page.keyboard.press("Control+z")
    page.get_by_role("button", name="+ Continuation").last.click()
    page.get_by_label("Continuation: Scale").fill("0.25")
    assert described(page) == cooled.then(cooled, scale=0.25)
    assert_shown(page, cooled.then(cooled, scale=0.25))
    page.get_by_label("Continuation: Scale").fill("2")
    settled(page)
    expect(page.locator("[id='fault-curve-scale']")).to_contain_text("scale = 2 must lie in (0, 1]")
    page.get_by_role("button", name="Remove the continuation").click()
    page.get_by_role("button", name="Remove the cooldown").click()
    assert described(page) == STABLE


def test_curves_are_compared_with_the_first(page):
    def figures() -> list[list[str]]:
        settled(page)
        rows = page.locator("#curves tbody tr").all()
        return [
            [row.locator(f"[data-figure={name}] b").inner_text() for name in ("bound", "advised")]
            for row in rows
        ]

    def wanted(*curves: Curve) -> list[list[str]]:
        table = compare(*curves)
        return [
            [f"× {number:.3f}" for number in pair] for pair in zip(table.bounds, table.peaks, strict=True)
        ]

    assert figures() == wanted(COSINE, STAGED, STABLE)
    expect(page.locator("#note")).to_have_text(NOTE)
    expect(page.locator("polyline")).to_have_count(3)
    drag(page, "Plateau 1, end", 40, 0)
    moved = described(page)
    assert figures() == wanted(COSINE, STAGED, moved)
    page.get_by_role("button", name="Compare the others with Stages").click()
    assert figures() == wanted(STAGED, COSINE, moved)
    page.get_by_role("button", name="Hide Cosine").click()
    expect(page.locator("polyline")).to_have_count(2)
    page.get_by_role("button", name="Remove Cosine").click()
    assert figures() == wanted(STAGED, moved)
    page.get_by_role("button", name="Take the advised peak for Stable").click()
    settled(page)
    peak = PEAK * compare(STAGED, moved).peaks[1]
    assert float(page.get_by_role("textbox", name="Peak learning rate").input_value()) == pytest.approx(
        peak, rel=5e-3
    )
    page.get_by_role("button", name="a line to 0", exact=True).click()
    line = PlateauCurve(10_000, warmup_steps=500, decay_shape="linear")
    assert described(page) == line
    assert figures() == wanted(STAGED, moved, line)


def test_the_rates_under_the_pointer_are_those_of_the_curves(page):
    box = page.locator("#picture").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"])
    settled(page)
    readout = page.locator("#readout")
    expect(readout).to_contain_text("Stable")

    def read() -> list[float]:
        numbers = re.sub(r"(?<=\d)\u202f", "", readout.inner_text())
        step, *found = map(float, re.findall(r"(?:step|Cosine|Stages|Stable)\s+([\d.e-]+)", numbers))
        for curve, rate in zip((COSINE, STAGED, STABLE), found, strict=True):
            assert rate == pytest.approx(PEAK * curve(int(step)), rel=1e-3, abs=1e-12)
        return [step, *found]

    step = read()[0]
    reader = handle(page, "Step to read the rates at")
    reader.focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert read()[0] == step + 100
    assert f"step {step + 100:.0f}: Cosine" in reader.get_attribute("aria-valuetext")


def test_lines_are_copied(page):
    for tab, words in (
        ("optax", "optax_schedule("),
        ("PyTorch", "lambda_lr("),
        ("JSON", '"plateaus": [[10, 40]]'),
    ):
        page.get_by_role("tab", name=tab).click()
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
        text = page.evaluate("navigator.clipboard.readText()")
        assert text == page.locator("#code").text_content()
        assert words in text


@pytest.mark.parametrize("way", ["pasted", "file"])
def test_json_is_opened(page, tmp_path, way):
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
    if way == "file":
        path = tmp_path / "saved.json"
        path.write_text(json.dumps(curve.to_dict()))
        dialog.get_by_label("or take a file").set_input_files(path)
        expect(pasted).to_have_value(path.read_text())
    else:
        pasted.fill(json.dumps(curve.to_dict()))
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_be_hidden()
    assert_shown(page, curve)
    expect(page.locator("#curves tbody tr")).to_have_count(4)


def test_answers_that_come_late_change_nothing(page):
    """What is typed while an answer is awaited is asked once that has come, and only the last of it."""
    held: list[Route] = []
    page.route("**/curve", lambda route: route.continue_() if held else held.append(route))
    field = page.get_by_label("Warmup steps")
    for steps in (600, 700, 800, 900):
        field.fill(str(steps))
    expect(page.locator("main[aria-busy=true]")).to_be_attached()
    (first,) = held
    first.continue_()
    assert described(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 900})
    assert_shown(page, described(page))


def test_to_choose_a_curve_is_no_step_of_undo(page):
    page.get_by_label("Warmup steps").fill("700")
    page.get_by_role("radio", name="Edit Cosine").check()
    assert described(page) == COSINE
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    assert described(page) == STABLE


def test_as_many_curves_as_the_server_takes_can_be_added(page):
    for number in range(4, MOST_CURVES + 1):
        page.get_by_role("button", name="a copy", exact=True).click()
        expect(page.locator("#curves tbody tr")).to_have_count(number)
    for name in ("a copy", "a cosine", "Open…"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    settled(page)
    expect(page.locator("#curves tbody [data-figure=bound]")).to_have_count(MOST_CURVES)


def test_likely_mistakes_are_said(page):
    page.get_by_label("Last rate, share of peak").fill("3e-5")
    settled(page)
    expect(page.get_by_role("status").filter(has_text="looks like a learning rate")).to_be_visible()


def test_nothing_is_lost_when_the_tab_is_loaded_again(page):
    page.get_by_label("Warmup steps").fill("700")
    curve = described(page)
    page.reload()
    assert described(page) == curve


def test_it_works_where_the_browser_keeps_nothing(page):
    """Storage that is full, or blocked. Before the tab is loaded again, the browser asks."""
    page.add_init_script("Storage.prototype.setItem = () => { throw new Error('full') }")
    page.reload()
    settled(page)
    page.get_by_label("Warmup steps").fill("700")
    assert described(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 700})
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.reload()
    assert asked == ["beforeunload"]
    assert described(page) == STABLE


def test_stages_that_are_added_begin_at_the_peak_without_a_warmup(page):
    for _ in range(2):  # the second time stages are added beside stages, which have no warmup of their own
        page.get_by_role("button", name="stages", exact=True).click()
        expect(page.get_by_label("Stage 1, steps")).to_be_visible()
        assert described(page)(np.arange(10_000)).max() == 1


def test_shapes_are_read_in_full(page):
    page.get_by_role("radio", name="Edit Stages").check()
    shapes = "1-x^0.75", "(1-x)^2.5", "exponential"
    for number, shape in enumerate(shapes, 1):
        field = page.get_by_label(f"Stage {number}, shape")
        field.fill(shape)
        field.blur()
        assert field.evaluate("field => field.scrollWidth <= field.clientWidth")


def test_nothing_scrolls_sideways(page):
    page.get_by_role("radio", name="Edit Stages").check()
    page.get_by_role("button", name="+ Continuation").last.click()
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_server_that_has_ended_is_said(browser, server):
    page = browser.new_page()
    page.goto(server.address)
    settled(page)
    page.route("**/*", lambda route: route.abort())
    page.get_by_label("Warmup steps").fill("700")
    expect(page.get_by_role("alert").filter(has_text="The server does not answer")).to_be_visible()
    page.unroute_all()
    page.get_by_label("Warmup steps").fill("800")
    assert described(page) == PlateauCurve(**{**STABLE.to_dict(), "warmup_steps": 800})
    expect(page.locator("#trouble")).to_be_hidden()
    page.close()
