"""Forecasts on the page in a browser: logs are opened, and every curve shows what `LossFit` forecasts."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import expect
from support.design.design import served
from support.design.page import DROP, DesignPage
from support.forecasts.logs import CURVE as COSINE, LOSSES, PEAK, RUN, STEPS, csv_of, rows_of

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.design.answers import initial_curves
from plateau_jax.design.server import Server
from plateau_jax.forecasts.loss_comparison import LossForecast

pytestmark = pytest.mark.slow

LONG = PlateauCurve(4500, warmup_steps=50)
STABLE = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
TEXT = csv_of(step=STEPS, loss=LOSSES)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(initial_curves([("Cosine", COSINE), ("Long", LONG), ("Stable", STABLE)], PEAK)) as server:
        yield server


def expect_forecast(design: DesignPage, name: str, forecast: LossForecast) -> None:
    loss, low, high, _ = forecast
    if not forecast.is_known:
        expect(design.cell(name)).to_have_text(f"{loss:.3f} ± ?")
        return
    expect(design.cell(name)).to_have_attribute("title", f"{low:.3f} to {high:.3f}")
    expect(design.cell(name)).to_have_text(f"{loss:.3f} ± {(high - low) / 2:.3f}")


def expect_difference_to_cosine(design: DesignPage, name: str, curve: Curve) -> None:
    difference = FIT.compare({"first": COSINE, "other": curve}, PEAK).differences[1]
    numbers = [f"{number:+.3f}".replace("-", "−") for number in difference]
    expect(design.cell(name, "difference")).to_have_attribute("title", "{}, {} to {}".format(*numbers))
    text = design.cell(name, "difference").inner_text()
    assert ("not distinguishable" in text) == (not difference.is_distinguishable)


def expect_peaks(design: DesignPage, *peaks: float) -> None:
    for name, peak in zip(design.names, peaks, strict=True):
        design.do(f"Edit {name}")
        assert design.peak() == peak


@pytest.fixture
def fitted(design) -> DesignPage:
    """The page with the log of COSINE."""
    expect(design.page.get_by_role("columnheader", name="Forecast loss")).to_be_hidden()
    expect(design.page.locator("#losses")).to_be_hidden()
    design.open_log(TEXT)
    expect_forecast(design, "Stable", FIT.predict(STABLE))
    return design


def test_every_curve_is_forecast(fitted):
    heads = fitted.page.locator("#curves th:visible").all_inner_texts()
    assert heads[:4] == ["Curve", "Forecast loss", "Difference", "Bound"]
    expect(fitted.page.locator("#trust")).to_contain_text("Trust a forecast more than the bound")
    expect_forecast(fitted, "Cosine", FIT.predict(COSINE))
    expect_difference_to_cosine(fitted, "Stable", STABLE)
    expect(fitted.cell("Long")).to_have_text("no forecast")
    expect(fitted.runs).to_contain_text(
        "run.csv 50 logged losses, up to step 1\u202f000, trained with Cosine, peak 0.001"
    )
    fitted.do("Edit Long", "a copy", "Edit Cosine", "a copy")
    expect(fitted.cell("Cosine (2)", "difference")).to_contain_text("the same curve")
    # A note names all curves that it is about.
    note = "Long, Long (2): no forecast, as the curve has 4500 steps; a forecast reaches at most 4"
    expect(fitted.notes.locator("li").filter(has_text=note)).to_have_count(1)
    expect(fitted.notes.locator("li").filter(has_text="no forecast")).to_have_count(1)


def test_forecast_follows_a_dragged_handle(fitted):
    fitted.drag("Plateau 1, end", -60, 0, releases=False)
    dragged = fitted.curve
    expect_forecast(fitted, "Stable", FIT.predict(dragged))
    losses = shown_points(fitted, ".curve.selected")[1]
    assert losses[-1] == pytest.approx(FIT.predict(dragged).loss, abs=2e-3)
    fitted.page.mouse.up()
    assert fitted.curve == dragged != STABLE
    expect_difference_to_cosine(fitted, "Stable", dragged)
    fitted.drag("Peak learning rate", 0, 40)
    assert fitted.peak() < PEAK
    expected = FIT.predict(dragged, fitted.peak())
    expect_forecast(fitted, "Stable", expected)
    expect_forecast(fitted, "Cosine", FIT.predict(COSINE))
    expect(fitted.notes).to_contain_text(expected.reasons[0])


def test_run_keeps_its_curve(fitted):
    """The curve in the table may change afterwards; undo concerns the curves alone; a reload keeps both."""
    fitted.do("Edit Cosine", ("Total steps", "1500"))
    expect_forecast(fitted, "Cosine", FIT.predict(PlateauCurve(1500, warmup_steps=50)))
    fitted.do("Undo")
    expect_forecast(fitted, "Cosine", FIT.predict(COSINE))
    expect(fitted.button("Undo")).to_be_disabled()
    expect(fitted.runs.locator("li")).to_have_count(1)
    fitted.reload()
    expect_forecast(fitted, "Stable", FIT.predict(STABLE))
    expect(fitted.runs).to_contain_text("run.csv")


def test_dialog_asks_for_what_the_log_lacks(design):
    """The curve with its peak, and each column that is unclear."""
    lrs = PEAK * COSINE(STEPS)
    text = csv_of(n=STEPS, _step=STEPS, step=STEPS + 1, a_loss=LOSSES, b_loss=LOSSES + 1, eta=lrs)
    design.choose(run=text)
    for question, label, choice in (
        ("several columns for step, 'step', '_step'", "Column of steps", "_step"),
        ("no usual column for loss among 'n', '_step', 'step', 'a_loss'", "Column of losses", "b_loss"),
        ("no usual column for lr", "Column of learning rates", "eta"),
    ):
        expect(design.status).to_contain_text(question)
        expect(design.dialog.get_by_role("button", name="Use this log")).to_be_disabled()
        design.set(label, choice)
    expect(design.status).to_have_text("50 logged losses, up to step 1\u202f000, with its learning rates.")
    design.set("Trained with", "Cosine")
    expect(design.status).to_contain_text("trained with Cosine")
    design.accept()
    fit = fit_losses(LossRun(COSINE, PEAK, STEPS, LOSSES + 1))
    expect_forecast(design, "Stable", fit.predict(STABLE, PEAK))


def test_two_logs_are_fitted_together(design):
    """One asks for its curve, the other has learning rates."""
    columns = {"step": STEPS, "lr": PEAK * COSINE(STEPS), "loss": LOSSES + 0.004}
    design.choose(run=TEXT, other=csv_of(**columns))
    design.dialog.get_by_role("group", name="run.csv").get_by_label("Trained with").select_option("Cosine")
    design.accept()
    fit = fit_losses([RUN, LossRun.read(rows_of(**columns))])
    expect_forecast(design, "Stable", fit.predict(STABLE, PEAK))
    design.do("Remove other.csv")
    expect_forecast(design, "Stable", FIT.predict(STABLE))
    design.do("Remove run.csv")
    expect(design.page.locator("[data-figure=forecast]")).to_have_count(0)
    expect(design.button("Open a log…")).to_be_focused()


def test_rejected_logs_and_fits_say_why(design):
    for content, message in ((b"\xff\xfe\x00", "a text file in UTF-8"), (b"{1, 2}", "is not JSON")):
        design.choose(other=content)
        expect(design.status).to_contain_text(message)
        expect(design.dialog.get_by_role("button", name="Use this log")).to_be_disabled()
        design.press("Escape")
    fault = design.page.locator("#forecast-fault")
    design.open_log(csv_of(step=STEPS[::5], loss=LOSSES[::5]))
    expect(fault).to_contain_text("a fit needs at least 20: log the loss more often")
    expect(design.page.locator("[data-figure=forecast]")).to_have_count(0)
    design.do("Remove run.csv")
    expect(fault).to_be_empty()


def test_dropped_log_opens_the_dialog(design):
    """It may be larger than other requests."""
    large = csv_of(step=STEPS, loss=LOSSES, note=["x" * 50_000] * len(STEPS))
    design.page.evaluate(DROP, ["dropped.csv", large])
    expect(design.dialog.get_by_role("group", name="dropped.csv")).to_be_visible()
    design.set("Trained with", "Cosine")
    design.accept()
    expect_forecast(design, "Stable", FIT.predict(STABLE))


def test_dialog_says_that_the_server_does_not_answer(design):
    design.page.route("**/log", lambda route: route.abort(), times=1)
    design.choose(run=TEXT)
    expect(design.dialog.get_by_role("alert")).to_contain_text("The server does not answer, so what")
    expect(design.status).to_contain_text("Choose the curve")  # after another try
    expect(design.page.locator("#trouble")).to_be_hidden()


def test_page_offers_the_largest_learning_rate_of_the_run(design):
    """The curve of the run reaches half its peak, twice that of the other curves."""
    half = StagedCurve([(50, 0.5, "linear"), (950, 0, "cosine")], start=0)
    design.open_json(half.to_dict())
    design.do(("Peak learning rate", str(4 * PEAK)))
    design.choose(run=TEXT)
    design.dialog.get_by_label("Trained with").select_option(index=4)
    design.accept()
    expect(design.notes).to_contain_text("0.001, is more than a factor of 1.5 from that of the runs, 0.002")
    expect(design.notes).to_contain_text("Long: no forecast, as the curve has 4500 steps")
    design.page.get_by_role("button", name="Use its peak, 0.002").click()
    expect(design.page.get_by_role("button", name="Use its peak")).to_have_count(0)
    expect_peaks(design, *[2 * PEAK] * 3, 4 * PEAK)
    fit = fit_losses(LossRun(half, 4 * PEAK, STEPS, LOSSES))
    expect_forecast(design, "Stable", fit.predict(STABLE, 2 * PEAK))
    design.press("Control+z")
    expect_peaks(design, *[PEAK] * 3, 4 * PEAK)


def test_warnings_about_a_log_stay_on_the_page(design):
    design.open_log(csv_of(step=[*STEPS, 980, 1000], loss=[*LOSSES, *LOSSES[-2:] + 1e-3]))
    note = design.notes.locator("li").filter(has_text="as in a resumed run: 2 earlier losses are left out")
    expect(note).to_have_text(re.compile("^run.csv(?!.*run.csv)"))
    design.page.reload()
    expect(note).to_have_count(1)


TICKS = """ticks => ticks.map((tick) => [
    tick.textContent, tick.getAttribute("text-anchor"), tick.x.baseVal[0].value, tick.y.baseVal[0].value,
])"""


def shown_points(design: DesignPage, selector: str) -> NDArray[np.float64]:
    """Return the points of a line in the picture of losses as steps and losses, by the labels of the axes."""
    ticks = design.page.locator("#losses .tick").evaluate_all(TICKS)
    numbers = [
        (float(text.replace("\u202f", "")), anchor, x, y) for text, anchor, x, y in ticks if text[0].isdigit()
    ]
    steps = [(x, number) for number, anchor, x, _ in numbers if anchor == "middle"]
    losses = [(y - 4, number) for number, anchor, _, y in numbers if anchor == "end"]
    scales = [np.polyfit(*np.array(axis).T, 1) for axis in (steps, losses)]
    line = design.page.locator(f"#losses {selector}")
    text = line.get_attribute("points") or re.sub("[MZ]|h.01", " ", line.get_attribute("d") or "")
    points = np.array([pair.split(",") for pair in text.split()], float)
    return np.array([np.polyval(scale, column) for scale, column in zip(scales, points.T, strict=True)])


def test_picture_shows_losses_fit_and_forecasts(fitted):
    steps, losses = shown_points(fitted, ".logged")
    np.testing.assert_allclose(steps, STEPS[-len(steps) :], atol=3)
    np.testing.assert_allclose(losses, LOSSES[-len(losses) :], atol=2e-3)
    steps, losses = shown_points(fitted, ".fit")
    np.testing.assert_allclose(losses[20:], FIT.losses(COSINE, np.rint(steps[20:]).astype(int)), atol=4e-3)
    steps, losses = shown_points(fitted, ".curve.selected")
    forecast = FIT.predict(STABLE)
    assert (steps[-1], losses[-1]) == (pytest.approx(2000, abs=3), pytest.approx(forecast.loss, abs=2e-3))
    steps, losses = shown_points(fitted, ".band.colour-2")
    assert losses[steps > 1998] == pytest.approx([forecast.high, forecast.low], abs=2e-3)
    expect(fitted.page.locator("#loss-legend")).to_contain_text(f"Stable {forecast.loss:.3f} ±")
    expect(fitted.page.locator("#loss-legend")).to_contain_text("Long no forecast")


def test_warmup_of_no_run_has_no_interval(fitted):
    curve = PlateauCurve(1000, warmup_steps=400)
    fitted.do("Edit Cosine", ("Warmup steps", "400"))
    expect_forecast(fitted, "Cosine", FIT.predict(curve))
    expect(fitted.cell("Stable", "difference")).to_contain_text("± ?")
    expect(fitted.notes).to_contain_text("no run had so long a warmup")
