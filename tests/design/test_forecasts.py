"""Answers of the design page about forecasts: those of `LossFit`, from logs as the user opens them."""

import csv
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, best_peak, fit_losses
from plateau_jax.design import forecasts, opened_logs
from plateau_jax.design.answers import answer_page
from plateau_jax.design.opened_logs import open_log
from plateau_jax.forecasts.loss_fitting import fit_named_runs
from plateau_jax.validation.curve_warning import suppress_warnings, warn

PEAK = 1e-3
CURVE = PlateauCurve(1000, warmup_steps=50)
WSD = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + 2 * STEPS**-0.5 + 0.1 * CURVE(STEPS)
RUN = LossRun(CURVE, PEAK, STEPS, LOSSES)

with suppress_warnings():
    ZERO = StagedCurve([(10,)], start=0.0)


def log(**columns: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def opened(
    text: str,
    curve: Curve | None = CURVE,
    peak: float | None = PEAK,
    unit: dict[str, Any] | None = None,
    **columns: str,
) -> dict[str, Any]:
    question = {"curve": curve and curve.to_dict(), "peak": peak, "columns": columns, "unit": unit or {}}
    return json.loads(json.dumps(open_log({"name": "log.csv", "text": text, **question})))


def run_of(*arguments: Any, **columns: Any) -> dict[str, Any]:
    return json.loads(opened(*arguments, **columns)["run"])


def forecast(runs: list[dict[str, Any]], *curves: tuple[Curve, float]) -> tuple[Any, list[Any]]:
    """Return the answers about runs, and about curves and their peaks."""
    entries = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in curves]
    answer = answer_page({"curves": entries, "runs": [json.dumps(run) for run in runs]})
    return answer["fit"], answer["forecasts"]


TEXT = log(step=STEPS, val_loss=LOSSES)
NO_STEP = log(n=STEPS, loss=LOSSES)
LATE_LR = log(step=[500, 1000], loss=[3, 2], lr=[1, 0])
TWO_LOSSES = log(step=STEPS, loss=LOSSES, train_loss=LOSSES)
TENSORBOARD = log(**{"Wall time": 1e9 + STEPS, "Step": STEPS, "Value": LOSSES})
TWO_LRS = log(step=STEPS, loss=LOSSES, a_lr=LOSSES, b_lr=2 * LOSSES)


def test_opened_log_is_that_of_loss_run(tmp_path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(TEXT)
    expected = LossRun.read(path, CURVE, PEAK)
    answer = opened(TEXT)
    run = json.loads(answer["run"])
    assert (Curve.from_dict(run["curve"]), run["peak"]) == (CURVE, PEAK)
    assert (run["steps"], run["losses"]) == (expected.steps.tolist(), expected.losses.tolist())
    assert (answer["loss"], answer["columns"], answer["advice"]) == ("val_loss", ["step", "val_loss"], [])
    half = StagedCurve([(1000, 0.5, "linear")], start=0.5)
    assert opened(TEXT, half)["largest_lr"] == 0.5 * PEAK


def test_learning_rates_of_a_log_are_its_curve() -> None:
    lrs = [0, 5e-4, 1e-3, *np.linspace(1e-3, 1e-5, 47)]
    run = run_of(log(step=STEPS, loss=LOSSES, lr=lrs), None, None)
    assert run["peak"] == 1e-3
    with suppress_warnings():
        assert Curve.from_dict(run["curve"])(STEPS) * 1e-3 == pytest.approx(lrs, abs=1e-8)


@pytest.mark.parametrize(
    ("text", "curve", "peak", "argument", "columns", "fault"),
    [
        (TEXT, None, None, "curve", [], "log.csv has no learning rates among the columns 'step', 'val_loss'"),
        (LATE_LR, None, None, "curve", [], "log.csv has learning rates only from step 500 to 1000 of 1000"),
        (TEXT, CURVE, None, "peak_value", [], "log.csv has no learning rates"),
        (TWO_LOSSES, CURVE, PEAK, "loss", ["loss", "train_loss"], "has several columns of losses"),
        (NO_STEP, CURVE, PEAK, "step", ["n", "loss"], "has no column of steps"),
        (TWO_LRS, None, None, "lr", ["a_lr", "b_lr"], "has several columns of learning rates"),
        (TENSORBOARD, CURVE, PEAK, "loss", ["Wall time", "Step", "Value"], "has no column of losses"),
        ("", CURVE, PEAK, None, [], "log.csv has no rows"),
        ("[1]", CURVE, PEAK, None, [], "log.csv is not a log in CSV, JSON or JSON lines"),
        ("iter 0: loss 9.9, time 3.4ms", CURVE, PEAK, None, [], "the text of a console, not a table: make"),
        (log(step=STEPS, loss=-LOSSES), CURVE, PEAK, None, [], "log.csv: losses[0] = -2.987"),
        (log(step=STEPS, loss=LOSSES, lr=1e42 * LOSSES), None, None, None, [], "what float32 can hold"),
        (TEXT, CURVE, -1, None, [], "peak = -1 must not be negative"),
    ],
)
def test_unclear_logs_ask_for_an_argument(text, curve, peak, argument, columns, fault) -> None:
    answer = opened(text, curve, peak)
    assert (answer["argument"], answer["columns"]) == (argument, columns)
    assert fault in answer["fault"]


def test_chosen_columns_are_read() -> None:
    text = log(n=STEPS, a_loss=LOSSES, b_loss=LOSSES + 1)
    assert run_of(text, step="n", loss="b_loss")["losses"][0] == LOSSES[0] + 1
    assert run_of(TENSORBOARD, loss="Value")["losses"] == LOSSES.tolist()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": [*STEPS, 1000], "loss": [*LOSSES, 3]}, "earlier values are left out, at step 1000"),
        (
            {"step": STEPS, "loss": [*LOSSES[:-1], "inf"]},
            "not finite, 1 of 50, at step 1000: they are left out",
        ),
        ({"step": STEPS, "loss": 10 * LOSSES}, "take the logarithm"),
        ({"step": STEPS, "loss": LOSSES, "lr": 2 * PEAK * CURVE(STEPS)}, "log.csv has the learning rate"),
    ],
)
def test_warnings_about_a_log_are_advice(columns, message) -> None:
    (advice,) = opened(log(**columns))["advice"]
    assert message in advice


CURVES = st.builds(
    lambda total, warmup, shape, held: PlateauCurve(
        total, warmup_steps=warmup, decay_shape=shape, plateaus=[(0, held)]
    ),
    st.integers(500, 3000),
    st.integers(0, 100),
    st.sampled_from(["linear", "cosine"]),
    st.integers(0, 90),
)
PEAKS = st.floats(0.7e-3, 1.4e-3)


@examples(25)
@given(st.lists(st.tuples(CURVES, PEAKS), min_size=1, max_size=4))
def test_forecasts_are_those_of_the_fit(pairs) -> None:
    """Each curve has its own peak; the differences are to the first."""
    fit = fit_losses(RUN)
    _, forecasts = forecast([run_of(TEXT)], *pairs)
    for (curve, peak), shown in zip(pairs, forecasts, strict=True):
        expected = fit.predict(curve, peak)
        assert (shown["loss"], shown["low"], shown["high"]) == expected[:3]
        assert shown["reasons"] == expected.reasons
        is_short = 3 * curve.warmup_steps < 49 * min(1, curve.total_steps / 1000)
        assert any("so short a warmup" in reason for reason in shown["reasons"]) == is_short
        difference = shown["difference"]
        assert (difference is None) == (shown is forecasts[0])
        if difference:
            assert difference["difference"] == pytest.approx(shown["loss"] - forecasts[0]["loss"])
            is_same = shown["loss"] == forecasts[0]["loss"]
            contains_0 = difference["low"] <= 0 <= difference["high"]
            assert difference["remark"] == (
                "the same curve" if is_same else "not distinguishable" if contains_0 else ""
            )
        line = shown["line"]
        assert line["steps"][-1] == curve.total_steps
        assert line["losses"][-1] == pytest.approx(shown["loss"], rel=1e-5)
        np.testing.assert_allclose(line["losses"], fit.losses(curve, line["steps"], peak), rtol=1e-5)
        assert line["half_widths"][-1] == pytest.approx(shown["high"] - shown["loss"], rel=1e-4)


def test_differences_are_those_of_a_comparison() -> None:
    names = {"first": CURVE, "second": WSD}
    expected = fit_losses(RUN).compare(names, PEAK).differences[1]
    _, forecasts = forecast([run_of(TEXT)], *((curve, PEAK) for curve in names.values()))
    difference = forecasts[1]["difference"]
    assert (difference["difference"], difference["low"], difference["high"]) == expected


def test_rejected_curves_do_not_hide_the_others() -> None:
    pairs = [(PlateauCurve(4001), PEAK), (ZERO, PEAK), (CURVE, 0), (CURVE, 2e-3), (CURVE, PEAK), (WSD, PEAK)]
    _, forecasts = forecast([run_of(TEXT)], *pairs)
    faults = [shown.get("fault", "") for shown in forecasts]
    assert "at most 4 times the 1000 steps of the longest run" in faults[0]
    assert faults[1] == faults[2] == "no learning rate above 0"
    assert "0.002, is more than a factor of 1.5" in faults[3]
    assert "=" not in faults[3]
    assert faults[4:] == ["", ""]
    assert forecasts[4]["difference"] is forecasts[5]["difference"] is None  # the first one has no forecast


def test_runs_are_read_and_fitted_once(monkeypatch) -> None:
    run = run_of(log(step=STEPS, loss=LOSSES + 0.25))
    first = forecast([run], (WSD, PEAK))
    monkeypatch.setattr(forecasts, "fit_named_runs", None)
    monkeypatch.setattr(opened_logs, "LossRun", None)
    assert forecast([run], (WSD, PEAK)) == first


def test_rejected_fits_name_the_log() -> None:
    run = run_of(TEXT)
    short = run_of(log(step=STEPS[::5], loss=LOSSES[::5]))
    constant = run_of(TEXT, StagedCurve([(1000,)], start=1.0))
    for runs, message in [
        ([short], "log the loss more often"),
        ([run, {**short, "name": "other.csv"}], "other.csv: "),
        ([constant], "log a run with a decay"),
    ]:
        fit, shown = forecast(runs, (CURVE, PEAK))
        assert message in fit["fault"]
        assert shown == []


def test_runs_are_drawn_as_they_were_logged_and_fitted() -> None:
    fit = fit_losses(RUN)
    (run,) = forecast([run_of(TEXT)])[0]["runs"]
    logged = dict(zip(STEPS.tolist(), LOSSES.tolist(), strict=True))
    assert [logged[step] for step in run["steps"]] == pytest.approx(run["losses"], rel=1e-5)
    np.testing.assert_allclose(run["fitted_losses"], fit.losses(CURVE, run["fitted_steps"]), rtol=1e-5)
    assert run["steps"][-1] == run["fitted_steps"][-1] == 1000


def test_warnings_of_a_fit_are_its_advice(monkeypatch) -> None:
    def fit_and_warn(*group: Any) -> Any:
        warn("these losses lag behind")
        return fit_named_runs(*group)

    monkeypatch.setattr(forecasts, "fit_named_runs", fit_and_warn)
    run = run_of(log(step=STEPS, loss=LOSSES + 0.375))
    for _ in range(2):  # the second answer is a kept one
        assert forecast([run])[0]["advice"] == ["these losses lag behind"]


def run_at(peak: float, extra: float = 0.0) -> dict[str, Any]:
    text = log(step=STEPS, loss=LOSSES + extra)
    return run_of(text, CURVE, peak) | {"name": f"{peak:g}.csv"}


def forecasts_at(peaks: dict[float, float], *curves: tuple[Curve, float]) -> tuple[Any, list[Any]]:
    return forecast([run_at(peak, extra) for peak, extra in peaks.items()], *curves)


def test_logs_of_three_peaks_have_best_peaks() -> None:
    peaks = {5e-4: 0.02, 1e-3: 0.0, 2e-3: 0.01}
    half = StagedCurve([(50, 0.5), (950, 0.0)])
    fitted, (at_peak, halved) = forecasts_at(peaks, (WSD, 1.2e-3), (half, 1e-3))
    runs = {peak: LossRun(CURVE, peak, STEPS, LOSSES + extra) for peak, extra in peaks.items()}
    assert fitted["best_fault"] == ""
    assert at_peak["loss"] == fit_losses(runs[1e-3]).predict(WSD, 1.2e-3).loss  # of the nearest peak
    assert halved["loss"] == fit_losses(runs[5e-4]).predict(half, 1e-3).loss
    assert halved["difference"] is None
    best = best_peak(list(runs.values()), WSD)
    assert (at_peak["best"]["peak"], at_peak["best"]["text"]) == (best.peak, str(best))
    assert halved["best"]["peak"] == pytest.approx(2 * best_peak(list(runs.values()), half).peak)


def test_logs_that_miss_the_peak_are_fitted_together() -> None:
    """As `fit_losses` does."""
    logs: list[str] = []
    for curve, every in ((CURVE, 20), (WSD, 23)):
        steps = np.arange(every, curve.total_steps + 1, every)
        losses = 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps)
        logs.append(log(step=steps, loss=losses, lr=PEAK * 0.9997 * curve(steps - 1)))
    runs = [run_of(text, None, None) | {"name": f"{index}.csv"} for index, text in enumerate(logs)]
    assert runs[0]["peak"] != runs[1]["peak"]
    _, (shown,) = forecast(runs, (WSD, PEAK))
    together = fit_losses([LossRun.read(list(csv.DictReader(text.splitlines()))) for text in logs])
    assert shown["loss"] == together.predict(WSD, PEAK).loss


def test_missing_best_peaks_say_why() -> None:
    fitted, (shown,) = forecasts_at({1e-3: 0.0, 2e-3: 0.01}, (WSD, 1e-3))
    assert "takes 3 peaks or more" in fitted["best_fault"]
    assert shown["loss"] == fit_losses(RUN).predict(WSD).loss
    fitted, (shown,) = forecasts_at({5e-4: 0.04, 1e-3: 0.02, 2e-3: 0.0}, (WSD, 8e-3))
    assert fitted["best_fault"] == ""
    assert "do not show the best peak" in shown["best_fault"]
    assert "more than a factor of 1.5" in shown["fault"]
    short = run_of(log(step=STEPS[::5], loss=LOSSES[::5]), CURVE, 5e-4) | {"name": "short.csv"}
    fitted, _ = forecast([short, run_at(1e-3), run_at(2e-3)])
    assert fitted["best_fault"].startswith("the runs at the peak 0.0005: ")
    assert [run is None for run in fitted["runs"]] == [True, False, False]


@pytest.mark.parametrize(
    ("unit", "steps"),
    [
        ({"name": "samples", "size": 32}, STEPS * 32),
        ({"name": "samples", "size": 32}, [*STEPS[:-1] * 32, 31_999]),  # the last batch is short
        ({"name": "samples", "size": 2**22}, [f"{step:e}" for step in STEPS * 2**22]),
        ({"name": "epochs", "size": 20}, STEPS // 20),
        ({"name": "epochs", "size": 200}, STEPS / 200),
        ({"name": "epochs from 0", "size": 20}, STEPS // 20 - 1),
        ({"name": "updates"}, STEPS),
    ],
)
def test_steps_in_other_units_become_updates(unit, steps) -> None:
    text = log(step=[*steps, "-"], loss=[*LOSSES, 3])
    run = run_of(text, unit=unit, step="step")
    assert (run["steps"], run["losses"]) == (STEPS.tolist(), LOSSES.tolist())


@pytest.mark.parametrize(
    ("unit", "argument", "fault"),
    [
        ({"name": "samples", "size": 0}, "unit", "number of samples or tokens per update must be positive"),
        ({"name": "epochs", "size": None}, "unit", "the number of updates per epoch must be positive"),
        ({"name": "epochs", "size": 20}, "step", "log.csv has steps that are not updates"),
        ({"name": "updates"}, None, "of updates, not of samples or epochs"),
    ],
)
def test_unclear_units_are_faults(unit, argument, fault) -> None:
    answer = opened(log(step=STEPS * 2**22, loss=LOSSES), unit=unit)
    assert (answer["argument"], fault in answer["fault"]) == (argument, True)
