"""Forecasts on the page in a browser: from opened logs, for every curve, those of `LossFit`."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from playwright.sync_api import expect
from support.design.design import served
from support.design.page import DROP
from support.forecasts.logs import CURVE as COSINE, LOSSES, PEAK, RUN, STEPS, csv_of, rows_of

from plateau_jax import LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.tools.design.answers import initial_curves

pytestmark = pytest.mark.slow

LONG = PlateauCurve(4500, warmup_steps=50)
STABLE = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
FORECAST_OF_COSINE = FIT.predict(COSINE)
FORECAST_OF_STABLE = FIT.predict(STABLE)
TEXT = csv_of(step=STEPS, loss=LOSSES)


@pytest.fixture(scope="module")
def server():
    curves = [("Cosine", COSINE), ("Long", LONG), ("Stable", STABLE)]
    with served(initial_curves(curves, PEAK)) as server:
        yield server


def expect_status(design, text):
    """Wait until the status of the dialog contains a text."""
    expect(design.status).to_contain_text(text)


def expect_forecast(design, name, forecast):
    loss, low, high, _ = forecast
    cell = design.cell(name)
    if forecast.is_known:
        half_width = (high - low) / 2
        expect(cell).to_have_attribute("title", f"{low:.3f} to {high:.3f}")
        expect(cell).to_have_text(f"{loss:.3f} ± {half_width:.3f}")
    else:
        expect(cell).to_have_text(f"{loss:.3f} ± ?")


def written(number):
    """Return a number with its sign as the page writes it."""
    return f"{number:+.3f}".replace("-", "−")


def expect_difference_to_cosine(design, name, curve):
    comparison = FIT.compare({"cosine": COSINE, "curve": curve}, PEAK)
    _, expected = comparison.differences
    difference = written(expected.difference)
    low = written(expected.low)
    high = written(expected.high)
    cell = design.cell(name, "difference")
    expect(cell).to_have_attribute("title", f"{difference}, {low} to {high}")
    if expected.is_distinguishable:
        expect(cell).not_to_contain_text("not distinguishable")
    else:
        expect(cell).to_contain_text("not distinguishable")


def expect_peaks(design, *peaks):
    for name, peak in zip(design.names, peaks, strict=True):
        design.do(f"Edit {name}")
        assert design.peak() == peak


@pytest.fixture
def fitted(design):
    """The page with the log of COSINE."""
    heading = design.page.get_by_role("columnheader", name="Forecast loss")
    picture = design.page.locator("#losses")
    expect(heading).to_be_hidden()
    expect(picture).to_be_hidden()
    design.open_log(TEXT)
    expect_forecast(design, "Stable", FORECAST_OF_STABLE)
    return design


# Forecasts in the table.


def test_every_curve_is_forecast(fitted):
    headings = fitted.page.locator("#curves th:visible").all_inner_texts()
    assert headings[:4] == ["Curve", "Forecast loss", "Difference", "Bound"]
    trust = fitted.page.locator("#trust")
    expect(trust).to_contain_text("Trust a forecast more than the bound")
    expect_forecast(fitted, "Cosine", FORECAST_OF_COSINE)
    expect_difference_to_cosine(fitted, "Stable", STABLE)
    expect(fitted.cell("Long")).to_have_text("no forecast")
    run = "run.csv 50 logged losses, up to step 1\u202f000, trained with Cosine, peak 0.001"
    expect(fitted.runs).to_contain_text(run)

    fitted.do("Edit Cosine", "a copy")
    difference = fitted.cell("Cosine (2)", "difference")
    expect(difference).to_contain_text("the same curve")

    # A note names all curves that it is about.
    fitted.do("Edit Long", "a copy")
    note = fitted.notes.locator("li").filter(has_text="no forecast")
    expect(note).to_have_count(1)
    too_long = "no forecast, as the curve has 4500 steps; a forecast reaches at most 4"
    expect(note).to_contain_text(f"Long, Long (2): {too_long}")


def test_forecast_follows_a_dragged_handle(fitted):
    fitted.drag("Plateau 1, end", -60, 0, releases=False)
    dragged = fitted.curve
    expected = FIT.predict(dragged)
    expect_forecast(fitted, "Stable", expected)
    _, losses = shown_points(fitted, ".curve.selected")
    assert losses[-1] == pytest.approx(expected.loss, abs=2e-3)
    fitted.page.mouse.up()
    assert dragged != STABLE
    assert fitted.curve == dragged
    expect_difference_to_cosine(fitted, "Stable", dragged)

    fitted.drag("Peak learning rate", 0, 40)
    assert fitted.peak() < PEAK
    expected = FIT.predict(dragged, fitted.peak())
    expect_forecast(fitted, "Stable", expected)
    expect_forecast(fitted, "Cosine", FORECAST_OF_COSINE)
    expect(fitted.notes).to_contain_text(expected.reasons[0])


def test_run_keeps_its_curve(fitted):
    """The curve in the table may change; undo concerns the curves alone; a reload keeps both."""
    longer = PlateauCurve(1500, warmup_steps=50)
    fitted.do("Edit Cosine", ("Total steps", "1500"))
    expect_forecast(fitted, "Cosine", FIT.predict(longer))
    fitted.do("Undo")
    expect_forecast(fitted, "Cosine", FORECAST_OF_COSINE)
    expect(fitted.button("Undo")).to_be_disabled()
    expect(fitted.runs.locator("li")).to_have_count(1)
    fitted.reload()
    expect_forecast(fitted, "Stable", FORECAST_OF_STABLE)
    expect(fitted.runs).to_contain_text("run.csv")


# Logs.


def use_button(design):
    return design.dialog.get_by_role("button", name="Use this log")


def test_dialog_asks_for_what_the_log_lacks(design):
    """The curve with its peak, and each column that is unclear."""
    text = csv_of(
        n=STEPS,
        _step=STEPS,
        step=STEPS + 1,
        a_loss=LOSSES,
        b_loss=LOSSES + 1,
        eta=PEAK * COSINE(STEPS),
    )
    use = use_button(design)
    design.choose(run=text)

    expect_status(design, "several columns for step, '_step', 'step'")
    expect(use).to_be_disabled()
    design.set("Column of steps", "_step")

    question = "no usual column for loss among 'n', '_step', 'step', 'a_loss'"
    expect_status(design, question)
    expect(use).to_be_disabled()
    design.set("Column of losses", "b_loss")

    expect_status(design, "no usual column for lr")
    expect(use).to_be_disabled()
    design.set("Column of learning rates", "eta")

    summary = "50 logged losses, up to step 1\u202f000, with its learning rates."
    expect(design.status).to_have_text(summary)
    design.set("Trained with", "Cosine")
    expect_status(design, "trained with Cosine")
    design.accept()
    run = LossRun(COSINE, PEAK, STEPS, LOSSES + 1)
    fit = fit_losses(run)
    expect_forecast(design, "Stable", fit.predict(STABLE, PEAK))


def test_two_logs_are_fitted_together(design):
    """One asks for its curve, the other has learning rates."""
    columns = {"step": STEPS, "lr": PEAK * COSINE(STEPS), "loss": LOSSES + 0.004}
    design.choose(run=TEXT, second=csv_of(**columns))
    first = design.dialog.get_by_role("group", name="run.csv")
    first.get_by_label("Trained with").select_option("Cosine")
    design.accept()
    second = LossRun.read(rows_of(**columns))
    fit = fit_losses([RUN, second])
    expect_forecast(design, "Stable", fit.predict(STABLE, PEAK))
    design.do("Remove second.csv")
    expect_forecast(design, "Stable", FORECAST_OF_STABLE)
    design.do("Remove run.csv")
    expect(design.page.locator("[data-figure=forecast]")).to_have_count(0)
    expect(design.button("Open a log…")).to_be_focused()


def test_rejected_logs_say_why(design):
    use = use_button(design)
    design.choose(binary=b"\x89PNG")
    expect_status(design, "binary.csv: 'utf-8' codec can't decode byte 0x89")
    expect(use).to_be_disabled()
    design.press("Escape")
    design.choose(wrong="{1, 2}\n")
    expect_status(design, "is not JSON")
    expect(use).to_be_disabled()


def test_rejected_fits_say_why(design):
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
    dropped = design.dialog.get_by_role("group", name="dropped.csv")
    expect(dropped).to_be_visible()
    design.set("Trained with", "Cosine")
    design.accept()
    expect_forecast(design, "Stable", FORECAST_OF_STABLE)


def test_page_offers_the_largest_learning_rate_of_the_run(design):
    """The curve of the run reaches half its peak, twice that of the other curves."""
    half = StagedCurve([(50, 0.5, "linear"), (950, 0, "cosine")], start=0)
    design.open_json(half.to_dict())
    design.do(("Peak learning rate", str(4 * PEAK)))
    design.choose(run=TEXT)
    design.dialog.get_by_label("Trained with").select_option(index=4)
    design.accept()
    too_low = "0.001, is more than a factor of 1.5 from that of the runs, 0.002"
    expect(design.notes).to_contain_text(too_low)
    expect(design.notes).to_contain_text("Long: no forecast, as the curve has 4500 steps")
    use_peak = design.page.get_by_role("button", name="Use its peak")
    expect(use_peak).to_have_text("Use its peak, 0.002")
    use_peak.click()
    expect(use_peak).to_have_count(0)
    expect_peaks(design, 2 * PEAK, 2 * PEAK, 2 * PEAK, 4 * PEAK)
    run = LossRun(half, 4 * PEAK, STEPS, LOSSES)
    fit = fit_losses(run)
    expect_forecast(design, "Stable", fit.predict(STABLE, 2 * PEAK))
    design.press("Control+z")
    expect_peaks(design, PEAK, PEAK, PEAK, 4 * PEAK)


def test_warnings_about_a_log_stay_on_the_page(design):
    steps = [*STEPS, 980, 1000]
    losses = [*LOSSES, *(LOSSES[-2:] + 1e-3)]
    design.open_log(csv_of(step=steps, loss=losses))
    message = "as in a resumed run: 2 earlier losses are left out"
    note = design.notes.locator("li").filter(has_text=message)
    expect(note).to_have_text(re.compile("^run.csv(?!.*run.csv)"))
    design.page.reload()
    expect(note).to_have_count(1)


# The picture of losses.

TICKS = """ticks => ticks.map((tick) => [
    tick.textContent,
    tick.getAttribute("text-anchor"),
    tick.x.baseVal[0].value,
    tick.y.baseVal[0].value,
])"""


def shown_points(design, selector):
    """Return the steps and the losses of a line in the picture, by the labels of the axes."""
    steps = []
    steps_x = []
    losses = []
    losses_y = []
    ticks = design.page.locator("#losses .tick").evaluate_all(TICKS)
    for text, anchor, x, y in ticks:
        if not text[0].isdigit():
            continue
        number = float(text.replace("\u202f", ""))
        if anchor == "middle":
            steps.append(number)
            steps_x.append(x)
        elif anchor == "end":
            losses.append(number)
            losses_y.append(y - 4)

    line = design.page.locator(f"#losses {selector}")
    text = line.get_attribute("points")
    if text is None:  # a path
        text = re.sub("[MZ]|h.01", " ", line.get_attribute("d") or "")
    points = np.array([pair.split(",") for pair in text.split()], float)
    step_axis = np.polyfit(steps_x, steps, 1)
    loss_axis = np.polyfit(losses_y, losses, 1)
    return np.polyval(step_axis, points[:, 0]), np.polyval(loss_axis, points[:, 1])


def test_picture_shows_losses_fit_and_forecasts(fitted):
    check_logged_losses(fitted)
    check_fit(fitted)
    check_forecasts(fitted)


def check_logged_losses(fitted):
    steps, losses = shown_points(fitted, ".logged")
    assert_allclose(steps, STEPS[-len(steps) :], atol=3)
    assert_allclose(losses, LOSSES[-len(losses) :], atol=2e-3)


def check_fit(fitted):
    steps, losses = shown_points(fitted, ".fit")
    late_steps = np.rint(steps[20:]).astype(int)
    expected = FIT.losses(COSINE, late_steps)
    assert_allclose(losses[20:], expected, atol=4e-3)


def check_forecasts(fitted):
    forecast = FORECAST_OF_STABLE
    steps, losses = shown_points(fitted, ".curve.selected")
    assert steps[-1] == pytest.approx(2000, abs=3)
    assert losses[-1] == pytest.approx(forecast.loss, abs=2e-3)
    steps, losses = shown_points(fitted, ".band.colour-2")
    ends = losses[steps > 1998]
    assert ends == pytest.approx([forecast.high, forecast.low], abs=2e-3)
    legend = fitted.page.locator("#loss-legend")
    expect(legend).to_contain_text(f"Stable {forecast.loss:.3f} ±")
    expect(legend).to_contain_text("Long no forecast")


def test_warmup_of_no_run_has_no_interval(fitted):
    curve = PlateauCurve(1000, warmup_steps=400)
    fitted.do("Edit Cosine", ("Warmup steps", "400"))
    expect_forecast(fitted, "Cosine", FIT.predict(curve))
    difference = fitted.cell("Stable", "difference")
    expect(difference).to_contain_text("± ?")
    expect(fitted.notes).to_contain_text("no run had so long a warmup")
