"""Answers of the design page about forecasts: those of `LossFit`, from logs as the user opens them."""

import csv
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.examples import examples

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, best_peak, fit_losses
from plateau_jax.design import forecasts
from plateau_jax.design.forecasts import MAX_FITS, fit_runs, forecast_curves, open_log
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


def key_of(*runs: Any) -> str:
    return fit_runs({"runs": list(runs)})["fit"]


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
    run = answer["run"]
    assert (Curve.from_dict(run["curve"]), run["peak"]) == (CURVE, PEAK)
    assert run["steps"] == expected.steps.tolist()
    assert run["losses"] == expected.losses.tolist()
    assert answer["loss"] == "val_loss"
    assert answer["columns"] == ["step", "val_loss"]
    assert answer["advice"] == []


def test_learning_rates_of_a_log_are_its_curve() -> None:
    lrs = [0, 5e-4, 1e-3, *np.linspace(1e-3, 1e-5, 47)]
    run = opened(log(step=STEPS, loss=LOSSES, lr=lrs), None, None)["run"]
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
        ("", CURVE, PEAK, None, [], "log.csv has no rows"),
        (log(step=STEPS, loss=-LOSSES), CURVE, PEAK, None, [], "log.csv: losses[0] = -2.987"),
        (
            log(step=STEPS, loss=LOSSES, lr=1e42 * LOSSES),
            None,
            None,
            None,
            [],
            "not exceed what float32 can hold",
        ),
        (TEXT, CURVE, -1, None, [], "peak = -1 must not be negative"),
        (TEXT, PlateauCurve(900), PEAK, None, [], "steps[-1] = 1000 lies after the end of the curve"),
        (TENSORBOARD, CURVE, PEAK, "loss", ["Wall time", "Step", "Value"], "has no column of losses"),
        ("[1]", CURVE, PEAK, None, [], "log.csv is not a log in CSV, JSON or JSON lines"),
        ("iter 0: loss 9.9, time 3.4ms", CURVE, PEAK, None, [], "the text of a console, not a table: make"),
        (
            log(step=STEPS, ppl=LOSSES),
            CURVE,
            PEAK,
            "loss",
            ["step", "ppl"],
            "'ppl', a perplexity: take its log",
        ),
        ("step,loss\n1,2\n2,two", CURVE, PEAK, None, [], "loss = 'two' must be a number"),
    ],
)
def test_unclear_logs_ask_for_an_argument(text, curve, peak, argument, columns, fault) -> None:
    answer = opened(text, curve, peak)
    assert (answer["argument"], answer["columns"]) == (argument, columns)
    assert fault in answer["fault"]


def test_chosen_columns_are_read() -> None:
    text = log(n=STEPS, a_loss=LOSSES, b_loss=LOSSES + 1)
    assert opened(text, step="n", loss="b_loss")["run"]["losses"][0] == LOSSES[0] + 1


def test_contradicted_curve_is_advised_against() -> None:
    (advice,) = opened(log(step=STEPS, loss=LOSSES, lr=PEAK * CURVE(STEPS)), PlateauCurve(3000))["advice"]
    assert "log.csv has the learning rate" in advice


def test_warnings_about_a_log_are_advice() -> None:
    repeated, infinite = (
        log(step=[*STEPS, 1000], loss=[*LOSSES, 3]),
        log(step=STEPS, loss=[*LOSSES[:-1], "inf"]),
    )
    for text, message in [
        (repeated, "earlier values are left out, at step 1000"),
        (infinite, "not finite, 1 of 50, at step 1000: they are left out"),
        (log(step=STEPS, loss=10 * LOSSES), "take the logarithm"),
    ]:
        (advice,) = opened(text)["advice"]
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
    questions = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in pairs]
    answer = forecast_curves({"fit": key_of(opened(TEXT)["run"]), "curves": questions})
    forecasts = answer["forecasts"]
    for (curve, peak), forecast in zip(pairs, forecasts, strict=True):
        expected = fit.predict(curve, peak)
        assert (forecast["loss"], forecast["low"], forecast["high"]) == expected[:3]
        assert forecast["reasons"] == expected.reasons
        is_short = 3 * curve.warmup_steps < 49 * min(1, curve.total_steps / 1000)
        assert any("so short a warmup" in reason for reason in forecast["reasons"]) == is_short
        difference = forecast["difference"]
        assert (difference is None) == (forecast is forecasts[0])
        if difference:
            assert difference["difference"] == pytest.approx(forecast["loss"] - forecasts[0]["loss"])
            is_same = forecast["loss"] == forecasts[0]["loss"]
            contains_0 = difference["low"] <= 0 <= difference["high"]
            assert difference["remark"] == (
                "the same curve" if is_same else "not distinguishable" if contains_0 else ""
            )
        line = forecast["line"]
        assert (line["losses"][-1], line["steps"][-1]) == (
            pytest.approx(forecast["loss"], rel=1e-5),
            curve.total_steps,
        )
        np.testing.assert_allclose(line["losses"], fit.losses(curve, line["steps"], peak), rtol=1e-5)
        assert line["half_widths"][-1] == pytest.approx(forecast["high"] - forecast["loss"], rel=1e-4)


def test_differences_are_those_of_a_comparison() -> None:
    names = {"first": CURVE, "second": WSD}
    expected = fit_losses(RUN).compare(names, PEAK).differences[1]
    questions = [{"curve": curve.to_dict(), "peak": PEAK} for curve in names.values()]
    answer = forecast_curves({"fit": key_of(opened(TEXT)["run"]), "curves": questions})
    difference = answer["forecasts"][1]["difference"]
    assert (difference["difference"], difference["low"], difference["high"]) == expected


def test_rejected_curves_do_not_hide_the_others() -> None:
    pairs = [(PlateauCurve(4001), PEAK), (ZERO, PEAK), (CURVE, 0), (CURVE, 2e-3), (CURVE, PEAK), (WSD, PEAK)]
    questions = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in pairs]
    forecasts = forecast_curves({"fit": key_of(opened(TEXT)["run"]), "curves": questions})["forecasts"]
    faults = [forecast.get("fault", "") for forecast in forecasts]
    assert "at most 4 times the 1000 steps of the longest run" in faults[0]
    assert faults[1] == faults[2] == "no learning rate above 0"
    assert "0.002, is more than a factor of 1.5" in faults[3]
    assert "=" not in faults[3]
    assert faults[4:] == ["", ""]
    assert forecasts[4]["difference"] is forecasts[5]["difference"] is None  # the first one has no forecast


def test_fit_is_made_once(monkeypatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        forecasts, "fit_named_runs", lambda *group: calls.append(group) or fit_named_runs(*group)
    )
    run = opened(log(step=STEPS, loss=LOSSES + 0.25))["run"]
    assert key_of(run) == key_of(dict(reversed(run.items())))
    assert len(calls) == 1


def test_run_of_an_opened_log_is_not_built_again(monkeypatch) -> None:
    """The page sends it back, with numbers as browsers write them."""
    run = opened(log(step=STEPS, loss=np.round(LOSSES + 0.25, 2) + 0.75))["run"]
    run = json.loads(re.sub(r"\.0(?=[,\]}])", "", json.dumps(run)))
    monkeypatch.setattr(forecasts, "LossRun", None)
    assert key_of(run)


def test_oldest_fits_are_forgotten() -> None:
    runs = [opened(log(step=STEPS, loss=LOSSES + 1 + number / 64))["run"] for number in range(MAX_FITS + 1)]
    keys = [key_of(run) for run in runs]
    assert forecast_curves({"fit": keys[0], "curves": []}) == {"forgotten": True}
    assert forecast_curves({"fit": keys[-1], "curves": []})["forecasts"] == []


def test_rejected_fits_name_the_log() -> None:
    run = opened(TEXT)["run"]
    short = opened(log(step=STEPS[::5], loss=LOSSES[::5]))["run"]
    assert "log the loss more often" in fit_runs({"runs": [short]})["fault"]
    fault = fit_runs({"runs": [run, {**short, "name": "other.csv"}]})["fault"]
    assert fault.startswith("other.csv: ")
    constant = opened(TEXT, StagedCurve([(1000,)], start=1.0))["run"]
    assert "log a run with a decay" in fit_runs({"runs": [constant]})["fault"]


def test_runs_are_drawn_as_they_were_logged_and_fitted() -> None:
    fit = fit_losses(RUN)
    (run,) = fit_runs({"runs": [opened(TEXT)["run"]]})["runs"]
    logged = dict(zip(STEPS.tolist(), LOSSES.tolist(), strict=True))
    assert [logged[step] for step in run["steps"]] == pytest.approx(run["losses"], rel=1e-5)
    np.testing.assert_allclose(run["fitted_losses"], fit.losses(CURVE, run["fitted_steps"]), rtol=1e-5)
    assert run["steps"][-1] == run["fitted_steps"][-1] == 1000


def test_warnings_of_a_fit_are_its_advice(monkeypatch) -> None:
    def fit_and_warn(*group: Any) -> Any:
        warn("these losses lag behind")
        return fit_named_runs(*group)

    monkeypatch.setattr(forecasts, "fit_named_runs", fit_and_warn)
    run = opened(log(step=STEPS, loss=LOSSES + 0.375))["run"]
    for _ in range(2):  # the second answer is a kept one
        assert fit_runs({"runs": [run]})["advice"] == ["these losses lag behind"]


def run_at(peak: float, extra: float = 0.0) -> dict[str, Any]:
    text = log(step=STEPS, loss=LOSSES + extra)
    return opened(text, CURVE, peak)["run"] | {"name": f"{peak:g}.csv"}


def forecasts_at(peaks: dict[float, float], *curves: tuple[Curve, float]) -> tuple[Any, list[Any]]:
    fitted = fit_runs({"runs": [run_at(peak, extra) for peak, extra in peaks.items()]})
    questions = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in curves]
    return fitted, forecast_curves({"fit": fitted["fit"], "curves": questions})["forecasts"]


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


@pytest.mark.parametrize("is_restarted", [False, True])
def test_logs_that_miss_the_peak_are_fitted_together(is_restarted) -> None:
    """As `fit_losses` does, and also by a server that has not read them."""
    logs: list[str] = []
    for curve, every in ((CURVE, 20), (WSD, 23)):
        steps = np.arange(every, curve.total_steps + 1, every)
        losses = 2.5 + 2 * steps**-0.5 + 0.1 * curve(steps)
        logs.append(log(step=steps, loss=losses, lr=PEAK * 0.9997 * curve(steps - 1)))
    runs = [opened(text, None, None)["run"] | {"name": f"{index}.csv"} for index, text in enumerate(logs)]
    assert runs[0]["peak"] != runs[1]["peak"]
    if is_restarted:
        forecasts._runs.clear()
    fitted = fit_runs({"runs": runs})
    question = {"fit": fitted["fit"], "curves": [{"curve": WSD.to_dict(), "peak": PEAK}]}
    together = fit_losses([LossRun.read(list(csv.DictReader(text.splitlines()))) for text in logs])
    assert forecast_curves(question)["forecasts"][0]["loss"] == together.predict(WSD, PEAK).loss


def test_missing_best_peaks_say_why() -> None:
    fitted, (forecast,) = forecasts_at({1e-3: 0.0, 2e-3: 0.01}, (WSD, 1e-3))
    assert "takes 3 peaks or more" in fitted["best_fault"]
    assert forecast["loss"] == fit_losses(RUN).predict(WSD).loss
    fitted, (forecast,) = forecasts_at({5e-4: 0.04, 1e-3: 0.02, 2e-3: 0.0}, (WSD, 8e-3))
    assert fitted["best_fault"] == ""
    assert "do not show the best peak" in forecast["best_fault"]
    assert "more than a factor of 1.5" in forecast["fault"]
    short = opened(log(step=STEPS[::5], loss=LOSSES[::5]), CURVE, 5e-4)["run"] | {"name": "short.csv"}
    fitted = fit_runs({"runs": [short, run_at(1e-3), run_at(2e-3)]})
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
    run = opened(text, unit=unit, step="step")["run"]
    assert (run["steps"], run["losses"]) == (STEPS.tolist(), LOSSES.tolist())


@pytest.mark.parametrize(
    ("unit", "argument", "fault"),
    [
        (
            {"name": "samples", "size": 0},
            "unit",
            "the number of samples or tokens per update must be positive",
        ),
        ({"name": "epochs", "size": None}, "unit", "the number of updates per epoch must be positive"),
        ({"name": "epochs", "size": 20}, "step", "log.csv has steps that are not updates"),
        ({"name": "updates"}, None, "of updates, not of samples or epochs"),
    ],
)
def test_unclear_units_are_faults(unit, argument, fault) -> None:
    answer = opened(log(step=STEPS * 2**22, loss=LOSSES), unit=unit)
    assert (answer["argument"], fault in answer["fault"]) == (argument, True)


def test_largest_learning_rate_is_that_of_the_curve() -> None:
    half = StagedCurve([(1000, 0.5, "linear")], start=0.5)
    assert opened(TEXT, half)["largest_lr"] == 0.5 * PEAK


def test_tensorboard_values_are_asked_for() -> None:
    text = log(**{"Wall time": 1e9 + STEPS, "Step": STEPS, "Value": LOSSES})
    answer = opened(text)
    assert (answer["argument"], "Value" in answer["columns"]) == ("loss", True)
    assert opened(text, loss="Value")["run"]["losses"] == LOSSES.tolist()
