"""Forecasts on the page in a browser: logs are opened, and every curve shows what `LossFit` forecasts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from support.design.design import served

from plateau_jax import Curve, LossFit, LossForecast, LossRun, PlateauCurve, fit_losses
from plateau_jax.design import forecasts
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.server import Server

pytestmark = pytest.mark.slow

PEAK = 1e-3
COSINE = PlateauCurve(1000, warmup_steps=50)
LONG = PlateauCurve(4500, warmup_steps=50)
STABLE = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + 2 * STEPS**-0.5 + 0.1 * COSINE(STEPS)
FIT = fit_losses(LossRun(COSINE, PEAK, STEPS, LOSSES))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(initial_curves([("Cosine", COSINE), ("Long", LONG), ("Stable", STABLE)], PEAK)) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1320, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(server.address)
    expect(page.locator("[data-figure=bound]")).to_have_count(3)
    yield page
    assert errors == []
    page.close()


def write_log(path: Path, **columns: Any) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(repr, map(float, row))) for row in rows)]))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "run.csv", step=STEPS, val_loss=LOSSES)


def choose(page: Page, *paths: Path) -> Locator:
    page.locator("#open-log").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Files").set_input_files(paths)
    return dialog


def accept(dialog: Locator) -> None:
    dialog.get_by_role("button", name="Use th").click()
    expect(dialog).to_be_hidden()


def open_log(page: Page, log: Path, curve: str = "Cosine") -> None:
    dialog = choose(page, log)
    dialog.get_by_label("Trained with").select_option(curve)
    accept(dialog)


def cell(page: Page, name: str) -> Locator:
    row = page.get_by_role("row").filter(has=page.get_by_role("radio", name=f"Edit {name}", exact=True))
    return row.locator("[data-figure=forecast]")


def expect_forecast(page: Page, name: str, forecast: LossForecast) -> None:
    loss, low, high, _ = forecast
    expect(cell(page, name)).to_contain_text(f"{loss:.3f} {low:.3f} to {high:.3f}")


def expect_difference(page: Page, name: str, fit: LossFit, first: Curve, curve: Curve) -> None:
    comparison = fit.compare({"first": first, "other": curve}, PEAK)
    numbers = [f"{number:+.3f}".replace("-", "−") for number in comparison.differences[1]]
    expect(cell(page, name)).to_contain_text("{}, {} to {}".format(*numbers))
    is_told_apart = comparison.differences[1].is_told_apart
    assert ("not told apart" in cell(page, name).inner_text()) == (not is_told_apart)


def selected_curve(page: Page) -> Curve:
    expect(page.locator("main[aria-busy=false]")).to_be_attached()
    page.get_by_role("tab", name="JSON").click()
    return Curve.from_dict(json.loads(page.locator("#code").text_content() or ""))


def drag(page: Page, name: str, right: float, down: float) -> None:
    """Press a handle and move it, without letting go."""
    mark = page.get_by_role("slider", name=name, exact=True).locator(".mark")
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right, y + down, steps=4)


def test_every_curve_is_forecast(page, log):
    expect(page.get_by_role("columnheader", name="Forecast loss")).to_be_hidden()
    open_log(page, log)
    expect(page.get_by_role("columnheader", name="Forecast loss")).to_be_visible()
    expect_forecast(page, "Cosine", FIT.predict(COSINE))
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    expect_difference(page, "Stable", FIT, COSINE, STABLE)
    expect(cell(page, "Long")).to_have_text("no forecast")
    notes = page.locator("#forecast-notes")
    expect(notes).to_contain_text(
        "Long: no forecast, as the curve has 4500 steps; a forecast reaches at most 4"
    )
    expect(page.locator("#runs")).to_contain_text(
        "run.csv 50 readings of val_loss by step, up to step 1 000; trained with"
    )


def test_note_names_all_curves_that_it_is_about(page, log):
    open_log(page, log)
    page.get_by_role("radio", name="Edit Long").check()
    page.get_by_role("button", name="a copy").click()
    notes = page.locator("#forecast-notes li")
    expect(notes.filter(has_text="Long, Long (2): no forecast, as the curve has 4500 steps")).to_have_count(1)
    expect(notes.filter(has_text="no forecast")).to_have_count(1)


def test_forecast_follows_a_dragged_handle(page, log):
    open_log(page, log)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    drag(page, "Plateau 1, end", -60, 0)
    dragged = selected_curve_of_drag(page)
    expect_forecast(page, "Stable", FIT.predict(dragged))
    page.mouse.up()
    assert selected_curve(page) == dragged != STABLE
    expect_difference(page, "Stable", FIT, COSINE, dragged)
    drag(page, "Peak learning rate", 0, 40)
    page.mouse.up()
    peak = float(page.get_by_role("textbox", name="Peak learning rate").input_value())
    assert peak < PEAK
    expected = FIT.predict(dragged, peak)
    expect_forecast(page, "Stable", expected)
    expect_forecast(page, "Cosine", FIT.predict(COSINE))
    expect(page.locator("#forecast-notes")).to_contain_text(expected.reasons[0])


def selected_curve_of_drag(page: Page) -> Curve:
    """Return the curve whose code the page shows, without clicking."""
    expect(page.locator("main[aria-busy=false]")).to_be_attached()
    names: dict[str, Curve] = {}
    exec(page.locator("#code").text_content() or "", names)
    return names["curve"]


def test_run_keeps_its_curve(page, log):
    """The curve in the table may change afterwards, and undo concerns the curves alone."""
    open_log(page, log, "Cosine")
    page.get_by_role("radio", name="Edit Cosine").check()
    page.get_by_label("Total steps").fill("1500")
    expect_forecast(page, "Cosine", FIT.predict(PlateauCurve(1500, warmup_steps=50)))
    page.get_by_role("button", name="Undo").click()
    expect_forecast(page, "Cosine", FIT.predict(COSINE))
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    expect(page.locator("#runs li")).to_have_count(1)


def test_dialog_asks_for_curve_and_peak(page, log):
    dialog = choose(page, log)
    expect(dialog.get_by_role("status")).to_contain_text("run.csv has no learning rates. Choose the curve")
    expect(dialog.get_by_role("button", name="Use this log")).to_be_disabled()
    expect(dialog.get_by_label("Peak learning rate")).to_be_hidden()
    dialog.get_by_label("Trained with").select_option("Cosine")
    expect(dialog.get_by_role("status")).to_have_text(re.compile("^50 readings of val_loss"))
    peak = dialog.get_by_label("Peak learning rate")
    expect(peak).to_have_value("0.001")
    peak.fill("")
    peak.blur()
    expect(dialog.get_by_role("status")).to_contain_text("Type the peak learning rate")
    peak.fill("1.25e-3")
    accept(dialog)
    fit = fit_losses(LossRun(COSINE, 1.25e-3, STEPS, LOSSES))
    expect_forecast(page, "Stable", fit.predict(STABLE, PEAK))


def test_dialog_asks_for_columns(page, tmp_path):
    log = write_log(tmp_path / "log.csv", n=STEPS, a_loss=LOSSES, b_loss=LOSSES + 1)
    dialog = choose(page, log)
    dialog.get_by_label("Trained with").select_option("Cosine")
    dialog.get_by_label("Column of steps").select_option("n")
    dialog.get_by_label("Column of losses").select_option("b_loss")
    accept(dialog)
    fit = fit_losses(LossRun(COSINE, PEAK, STEPS, LOSSES + 1))
    expect_forecast(page, "Stable", fit.predict(STABLE))


def test_two_logs_are_fitted_together(page, log, tmp_path):
    history = [
        {"step": int(step), "learning_rate": PEAK * COSINE(int(step)), "eval_loss": float(loss)}
        for step, loss in zip(STEPS, LOSSES + 0.004, strict=True)
    ]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    dialog = choose(page, log, state)
    dialog.get_by_role("group", name="run.csv").get_by_label("Trained with").select_option("Cosine")
    accept(dialog)
    read = (
        "50 readings of eval_loss by step, up to step 1 000; trained with the learning rates in learning_rate"
    )
    expect(page.locator("#runs")).to_contain_text(read)
    runs = [LossRun(COSINE, PEAK, STEPS, LOSSES), LossRun.read(state)]
    fit = fit_losses(runs)
    expect_forecast(page, "Stable", fit.predict(STABLE, PEAK))
    page.get_by_role("button", name="Remove trainer_state.json").click()
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.get_by_role("button", name="Remove run.csv").click()
    expect(page.locator("[data-figure=forecast]")).to_have_count(0)
    expect(page.get_by_role("button", name="Open a log…")).to_be_focused()


def test_refused_fit_says_what_to_log(page, tmp_path):
    log = write_log(tmp_path / "run.csv", step=STEPS[::5], val_loss=LOSSES[::5])
    open_log(page, log)
    expect(page.locator("#forecast-fault")).to_contain_text(
        "a fit needs at least 20: log the loss more often"
    )
    expect(page.locator("[data-figure=forecast]")).to_have_count(0)
    page.get_by_role("button", name="Remove run.csv").click()
    expect(page.locator("#forecast-fault")).to_be_empty()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "not a text file in UTF-8"), (b"[1, 2]", "is not a log"), (b"", "has no rows")],
)
def test_other_files_are_refused(page, tmp_path, content, message):
    path = tmp_path / "other.csv"
    path.write_bytes(content)
    dialog = choose(page, path)
    expect(dialog.get_by_role("status")).to_contain_text(message)
    expect(dialog.get_by_role("button", name="Use this log")).to_be_disabled()


def test_reload_keeps_the_logs(page, log):
    open_log(page, log)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.reload()
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    expect(page.locator("#runs")).to_contain_text("run.csv")


def test_restarted_server_fits_again(page, log):
    open_log(page, log)
    expect_forecast(page, "Cosine", FIT.predict(COSINE))
    forecasts._fits.clear()
    forecasts._runs.clear()
    page.get_by_label("Total steps").fill("1700")
    changed = PlateauCurve(1700, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
    expect_forecast(page, "Stable", FIT.predict(changed))


def test_dropped_log_opens_the_dialog(page, log):
    page.evaluate(
        """(text) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], "dropped.csv"));
            const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
            document.body.dispatchEvent(drop);
        }""",
        log.read_text(),
    )
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("group", name="dropped.csv")).to_be_visible()
    dialog.get_by_label("Trained with").select_option("Cosine")
    accept(dialog)
    expect_forecast(page, "Stable", FIT.predict(STABLE))


def test_log_may_be_opened_before_the_curves_arrive(browser, server, log):
    page = browser.new_page()
    held: list[Route] = []
    page.route("**/curve", lambda route: held.append(route), times=1)
    with page.expect_request("**/curve"):
        page.goto(server.address)
    dialog = choose(page, log)
    held[0].continue_()
    dialog.get_by_label("Trained with").select_option("Cosine")
    accept(dialog)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.close()


def test_large_log_is_opened(page, tmp_path):
    """Larger than other requests may be; the server reads and fits it once."""
    steps = np.arange(1, 50_001)
    losses = 2.5 + 20 * (steps + 100.0) ** -0.44
    page.get_by_label("Total steps").fill("50000")
    page.get_by_label("Warmup steps").fill("500")
    log = write_log(tmp_path / "run.csv", step=steps, loss=losses, grad_norm=losses, seconds=losses)
    assert log.stat().st_size > 2**20
    open_log(page, log, "Stable")
    expect(page.locator("#runs")).to_contain_text("50000 readings of loss")
    stable = PlateauCurve(50_000, warmup_steps=500, plateaus=[(0, 70)], decay_shape="linear")
    expect_forecast(page, "Stable", fit_losses(LossRun(stable, PEAK, steps, losses)).predict(stable))


SIZES = [(1440, 900), (1280, 800), (1240, 800), (1180, 800), (1024, 768), (720, 450), (390, 844)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_forecasts_fit_the_window(browser, server, log, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(server.address)
    dialog = choose(page, log)
    dialog.get_by_label("Trained with").select_option("Cosine")
    assert dialog.evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")
    accept(dialog)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.get_by_label("Name of Stable").fill("Long cooldown")
    page.keyboard.press("Enter")
    expect_forecast(page, "Long cooldown", FIT.predict(STABLE))
    name = page.get_by_label("Name of Long cooldown")
    assert name.evaluate("field => field.scrollWidth <= field.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#curves").evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    page.close()
