"""Forecasts on the page in a browser: logs are opened, and every curve shows what `LossFit` forecasts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, Route, expect
from support.design.design import served
from support.design.page import centre, curve_of_optax_code, handle, wait_until_settled

from plateau_jax import (
    Curve,
    LossFit,
    LossForecast,
    LossRun,
    PlateauCurve,
    StagedCurve,
    best_peak,
    fit_losses,
)
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


def cell(page: Page, name: str, figure: str = "forecast") -> Locator:
    row = page.get_by_role("row").filter(has=page.get_by_role("radio", name=f"Edit {name}", exact=True))
    return row.locator(f"[data-figure={figure}]")


def expect_forecast(page: Page, name: str, forecast: LossForecast) -> None:
    loss, low, high, _ = forecast
    expect(cell(page, name)).to_have_attribute("title", f"{low:.3f} to {high:.3f}")
    expect(cell(page, name)).to_have_text(f"{loss:.3f} ± {(high - low) / 2:.3f}")


def expect_difference(page: Page, name: str, fit: LossFit, first: Curve, curve: Curve) -> None:
    comparison = fit.compare({"first": first, "other": curve}, PEAK)
    numbers = [f"{number:+.3f}".replace("-", "−") for number in comparison.differences[1]]
    shown = cell(page, name, "difference")
    expect(shown).to_have_attribute("title", "{}, {} to {}".format(*numbers))
    is_distinguishable = comparison.differences[1].is_distinguishable
    assert ("not distinguishable" in shown.inner_text()) == (not is_distinguishable)


def drag(page: Page, name: str, right: float, down: float) -> None:
    """Press a handle and move it, without letting go."""
    x, y = centre(handle(page, name))
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
        "run.csv 50 logged losses (val_loss by step), up to step 1 000"
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
    dragged = curve_of_optax_code(page)
    expect_forecast(page, "Stable", FIT.predict(dragged))
    page.mouse.up()
    assert curve_of_optax_code(page) == dragged != STABLE
    expect_difference(page, "Stable", FIT, COSINE, dragged)
    drag(page, "Peak learning rate", 0, 40)
    page.mouse.up()
    peak = float(page.get_by_role("textbox", name="Peak learning rate").input_value())
    assert peak < PEAK
    expected = FIT.predict(dragged, peak)
    expect_forecast(page, "Stable", expected)
    expect_forecast(page, "Cosine", FIT.predict(COSINE))
    expect(page.locator("#forecast-notes")).to_contain_text(expected.reasons[0])


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
    expect(dialog.get_by_role("status")).to_contain_text("'val_loss'. Choose the curve")
    expect(dialog.get_by_role("button", name="Use this log")).to_be_disabled()
    expect(dialog.get_by_label("Peak learning rate")).to_be_hidden()
    dialog.get_by_label("Trained with").select_option("Cosine")
    expect(dialog.get_by_role("status")).to_have_text(re.compile("^50 logged losses .val_loss"))
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
    history.insert(2, {"step": 50, "learning_rate": PEAK})
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    dialog = choose(page, log, state)
    dialog.get_by_role("group", name="run.csv").get_by_label("Trained with").select_option("Cosine")
    accept(dialog)
    runs = [LossRun(COSINE, PEAK, STEPS, LOSSES), LossRun.read(state)]
    fit = fit_losses(runs)
    expect_forecast(page, "Stable", fit.predict(STABLE, PEAK))
    page.get_by_role("button", name="Remove trainer_state.json").click()
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.get_by_role("button", name="Remove run.csv").click()
    expect(page.locator("[data-figure=forecast]")).to_have_count(0)
    expect(page.get_by_role("button", name="Open a log…")).to_be_focused()


def test_rejected_fit_says_what_to_log(page, tmp_path):
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
def test_other_files_are_rejected(page, tmp_path, content, message):
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
    page.route("**/page", lambda route: held.append(route), times=1)
    with page.expect_request("**/page"):
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
    expect(page.locator("#runs")).to_contain_text("50000 logged losses (loss by step)")
    stable = PlateauCurve(50_000, warmup_steps=500, plateaus=[(0, 70)], decay_shape="linear")
    expect_forecast(page, "Stable", fit_losses(LossRun(stable, PEAK, steps, losses)).predict(stable))


SIZES = [(1440, 900), (1280, 800), (1240, 800), (1180, 800), (1024, 768), (720, 450), (390, 844)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_forecasts_fit_the_window(browser, server, log, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(server.address)
    dialog = choose(page, log.rename(log.with_stem("run_" * 30)))
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


def expect_peaks(page: Page, *peaks: float) -> None:
    wait_until_settled(page)
    fields = page.get_by_role("radio", name=re.compile("^Edit "))
    for index, peak in enumerate(peaks):
        fields.nth(index).check()
        expect(page.get_by_role("textbox", name="Peak learning rate")).to_have_value(f"{peak:g}")


def test_page_offers_what_a_forecast_needs(page, tmp_path):
    """The peak of the page is not that of the log: the page says so, and offers to change it."""
    steps = np.union1d(STEPS, [50])  # with the peak
    losses = np.interp(steps, STEPS, LOSSES)
    accept(
        choose(page, write_log(tmp_path / "run.csv", step=steps, lr=2 * PEAK * COSINE(steps), loss=losses))
    )
    notes = page.locator("#forecast-notes")
    expect(notes).to_contain_text("0.001, is more than a factor of 1.5 from that of the runs, 0.002")
    expect(notes).to_contain_text("Long: no forecast, as the curve has 4500 steps")
    page.get_by_role("button", name="Use its peak").click()
    expect(cell(page, "Stable")).to_contain_text("±")
    expect(page.get_by_role("button", name="Use its peak")).to_have_count(0)
    page.get_by_role("button", name="Add this run's curve").click()
    expect(cell(page, "run")).to_contain_text("±")
    expect_peaks(page, *[2 * PEAK] * 4)
    page.keyboard.press("Control+z")
    expect(page.locator("#curves tbody tr")).to_have_count(3)
    page.keyboard.press("Control+z")
    expect_peaks(page, *[PEAK] * 3)
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()


def test_peak_is_offered_for_largest_learning_rates(page, tmp_path):
    """The curve of the run reaches half its peak."""
    half = StagedCurve([(50, 0.5, "linear"), (950, 0, "cosine")], start=0)
    page.locator("#open").click()
    page.locator("#pasted").fill(json.dumps(half.to_dict()))
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    log = write_log(tmp_path / "run.csv", step=STEPS, val_loss=LOSSES)
    dialog = choose(page, log)
    dialog.get_by_label("Trained with").select_option(index=4)
    dialog.get_by_label("Peak learning rate").fill(str(4 * PEAK))
    accept(dialog)
    page.get_by_role("button", name="Use its peak, 0.002").click()
    expect(page.get_by_role("button", name="Use its peak")).to_have_count(0)
    expect_peaks(page, *[2 * PEAK] * 3, 4 * PEAK)
    fit = fit_losses(LossRun(half, 4 * PEAK, STEPS, LOSSES))
    expect_forecast(page, "Stable", fit.predict(STABLE, 2 * PEAK))


def test_warnings_about_a_log_stay_on_the_page(page, tmp_path):
    log = write_log(tmp_path / "run.csv", step=[*STEPS, 1000], val_loss=[*LOSSES, LOSSES[-1] + 1e-3])
    open_log(page, log)
    note = page.locator("#forecast-notes li").filter(has_text="earlier values are left out")
    expect(note).to_have_text(re.compile("^run.csv(?!.*run.csv)"))
    page.reload()
    expect(note).to_have_count(1)


def test_dialog_says_that_the_server_does_not_answer(browser, server, log):
    page = browser.new_page()
    page.goto(server.address)
    wait_until_settled(page)
    page.route("**/log", lambda route: route.abort(), times=1)
    dialog = choose(page, log)
    expect(dialog.get_by_role("alert")).to_contain_text("The server does not answer, so what")
    expect(dialog.get_by_role("status")).to_contain_text("Choose the curve")  # after another try
    expect(page.locator("#trouble")).to_be_hidden()
    page.close()


def test_twelve_curves_leave_no_room_for_a_run(page, tmp_path):
    log = write_log(tmp_path / "run.csv", step=STEPS, lr=PEAK * COSINE(STEPS), val_loss=LOSSES)
    for _ in range(9):
        page.get_by_role("button", name="a copy").click()
    accept(choose(page, log))
    expect(page.get_by_role("button", name="Add this run's curve")).to_be_disabled()
    expect(page.locator("#runs")).to_contain_text("The page has no room for another curve.")


def test_dialog_asks_what_the_steps_count(page, tmp_path):
    log = write_log(tmp_path / "tensorboard.csv", Step=STEPS * 32, Value=LOSSES)
    dialog = choose(page, log)
    dialog.get_by_label("Column of losses").select_option("Value")
    dialog.get_by_label("Trained with").select_option("Cosine")
    expect(dialog.get_by_role("status")).to_contain_text("and count steps in updates")
    dialog.get_by_label("Steps are counted in").select_option("samples or tokens")
    size = dialog.get_by_role("textbox", name="Samples or tokens per update")
    size.fill("32")
    dialog.get_by_label("Column of steps").select_option("Step")
    expect(dialog.get_by_role("status")).to_contain_text(
        re.compile(r"50 logged losses .Value.*, up to step 1\u202f000")
    )
    accept(dialog)
    expect_forecast(page, "Stable", FIT.predict(STABLE))


def shown_points(page: Page, selector: str) -> NDArray[np.float64]:
    """Return the points of a line in the picture of losses as steps and losses, by the labels of the axes."""
    ticks = page.locator("#losses .tick").evaluate_all(
        """ticks => ticks.map((tick) => [
            tick.textContent, tick.getAttribute("text-anchor"),
            tick.x.baseVal[0].value, tick.y.baseVal[0].value,
        ])"""
    )
    numbers = [
        (text.replace("\u202f", ""), anchor, x, y) for text, anchor, x, y in ticks if text[0].isdigit()
    ]
    steps = [(x, float(text)) for text, anchor, x, _ in numbers if anchor == "middle"]
    losses = [(y - 4, float(text)) for text, anchor, _, y in numbers if anchor == "end"]
    scales = [np.polyfit(*np.array(axis).T, 1) for axis in (steps, losses)]
    line = page.locator(f"#losses {selector}")
    text = line.get_attribute("points") or re.sub("[MZ]|h.01", " ", line.get_attribute("d") or "")
    points = np.array([pair.split(",") for pair in text.split()], float)
    return np.array([np.polyval(scale, column) for scale, column in zip(scales, points.T, strict=True)])


def test_picture_shows_losses_fit_and_forecasts(page, log):
    expect(page.locator("#losses")).to_be_hidden()
    open_log(page, log)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    steps, losses = shown_points(page, ".logged")
    np.testing.assert_allclose(steps, STEPS[-len(steps) :], atol=3)
    np.testing.assert_allclose(losses, LOSSES[-len(losses) :], atol=2e-3)
    steps, losses = shown_points(page, ".fit")
    np.testing.assert_allclose(losses[20:], FIT.losses(COSINE, np.rint(steps[20:]).astype(int)), atol=4e-3)
    steps, losses = shown_points(page, ".curve.selected")
    forecast = FIT.predict(STABLE)
    assert (steps[-1], losses[-1]) == (pytest.approx(2000, abs=3), pytest.approx(forecast.loss, abs=2e-3))
    steps, losses = shown_points(page, ".band.colour-2")
    assert losses[steps > 1998] == pytest.approx([forecast.high, forecast.low], abs=2e-3)
    expect(page.locator("#loss-legend")).to_contain_text(f"Stable {forecast.loss:.3f} ±")
    expect(page.locator("#loss-legend")).to_contain_text("Long no forecast")
    drag(page, "Plateau 1, end", -60, 0)
    dragged = curve_of_optax_code(page)
    expect_forecast(page, "Stable", FIT.predict(dragged))
    assert shown_points(page, ".curve.selected")[1][-1] == pytest.approx(FIT.predict(dragged).loss, abs=2e-3)
    page.mouse.up()


def test_picture_of_losses_is_also_a_table(page, log):
    open_log(page, log)
    page.get_by_text("The picture as a table").click()
    table = page.get_by_role("table", name="Losses")
    groups = table.locator("tbody")
    expect(groups.locator("th")).to_have_text(
        ["Cosine, forecast", "Stable, forecast", "run.csv, logged", "run.csv, fit"]
    )
    step, loss, interval = groups.nth(1).locator("tr").last.locator("td").all_inner_texts()
    forecast = FIT.predict(STABLE)
    assert (step, loss) == ("2\u202f000", f"{forecast.loss:.3f}")
    assert interval == f"{forecast.low:.3f} to {forecast.high:.3f}"
    step, loss, _ = groups.nth(2).locator("tr").last.locator("td").all_inner_texts()
    assert (step, loss) == ("1\u202f000", f"{LOSSES[-1]:.3f}")


def test_steep_beginning_does_not_flatten_the_rest(page, log):
    """A curve that is far shorter than the run shows its end, not its beginning."""
    open_log(page, log)
    page.get_by_label("Total steps").fill("110")
    expect_forecast(
        page,
        "Stable",
        FIT.predict(PlateauCurve(110, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")),
    )
    for selector in (".fit", ".curve.selected"):
        heights = page.locator(f"#losses {selector}").evaluate(
            "line => [...line.points].map(({ y }) => y / line.ownerSVGElement.clientHeight)"
        )
        assert 0 < heights[-1] < 1
    assert heights[0] < 0
    assert page.locator("#losses .fit").evaluate("line => line.points.at?.(0)?.y ?? line.points[0].y") > 0


def test_logs_of_three_peaks_fill_the_best_peaks(page, tmp_path):
    extra = {5e-4: 0.02, 1e-3: 0.0, 2e-3: 0.01}
    runs = [LossRun(COSINE, peak, STEPS, LOSSES + more) for peak, more in extra.items()]
    for peak, more in extra.items():
        write_log(tmp_path / f"{peak:g}.csv", step=STEPS, val_loss=LOSSES + more)
    dialog = choose(page, *(tmp_path / f"{peak:g}.csv" for peak in extra))
    for peak in extra:
        group = dialog.get_by_role("group", name=f"{peak:g}.csv")
        group.get_by_label("Trained with").select_option("Cosine")
        group.get_by_label("Peak learning rate").fill(f"{peak:g}")
    accept(dialog)
    best = best_peak(runs, STABLE)
    expect(cell(page, "Stable", "peak-ratio")).to_contain_text(f"{best.peak:.3g}use")
    expect(page.locator("#forecast-notes")).to_contain_text(f"Stable: best peak {best}.")
    expect(page.locator("#forecast-notes")).to_contain_text(
        "Long: no best peak, as the runs at the peak 0.0005"
    )
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.get_by_role("button", name="Use the best peak for Stable").click()
    expect_forecast(page, "Stable", FIT.predict(STABLE, float(f"{best.peak:.3g}")))
    page.get_by_role("button", name="Remove 0.002.csv").click()
    expect(page.locator("#forecast-notes")).to_contain_text("No best peaks: the runs at 0.0005, 0.001 do not")
    expect_forecast(page, "Cosine", FIT.predict(COSINE))


def test_equal_curves_are_the_same_curve(page, log):
    open_log(page, log)
    page.get_by_role("radio", name="Edit Cosine").check()
    page.get_by_role("button", name="a copy").click()
    expect(cell(page, "Cosine (2)", "difference")).to_contain_text("the same curve")


def test_rows_stay_one_line_high(page, log):
    open_log(page, log)
    expect_forecast(page, "Stable", FIT.predict(STABLE))
    page.get_by_role("button", name="a copy").click()
    wait_until_settled(page)
    heights = page.locator("#curves tbody tr").evaluate_all("rows => rows.map(row => row.clientHeight)")
    assert max(heights) < 48
    heads = page.locator("#curves th:visible").all_inner_texts()
    assert heads[:4] == ["Curve", "Forecast loss", "Difference", "Bound"]
    expect(page.locator("#trust")).to_contain_text("Trust a forecast more than the bound")
