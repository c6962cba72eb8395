"""Answers of the design page about forecasts: those of `LossFit`, from logs as the user opens them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import pairs as paired
from support.examples import examples
from support.forecasts.logs import CURVE, LOSSES, PEAK, RUN, STEPS, csv_of, opened, rows_of

from plateau_jax import Curve, LossRun, PlateauCurve, StagedCurve, fit_losses
from plateau_jax.design import forecasts
from plateau_jax.design.answers import answer_page
from plateau_jax.forecasts.fitted_law import fit_named_runs
from plateau_jax.validation.curve_warning import suppress_warnings, warn

WSD = PlateauCurve(2000, warmup_steps=50, plateaus=[(0, 70)], decay_shape="linear")
FIT = fit_losses(RUN)
TEXT = csv_of(step=STEPS, loss=LOSSES)
FEW = csv_of(step=STEPS[::5], loss=LOSSES[::5])

with suppress_warnings():
    ZERO = StagedCurve([(10,)], start=0.0)


def run_of(*arguments: Any, **options: Any) -> dict[str, Any]:
    return json.loads(opened(*arguments, **options)["run"])


def run_at(peak: float, extra: float = 0.0) -> dict[str, Any]:
    return run_of(csv_of(step=STEPS, loss=LOSSES + extra), CURVE, peak) | {"name": f"{peak:g}.csv"}


def forecast(runs: list[dict[str, Any]], *curves: tuple[Curve, float]) -> tuple[Any, list[Any]]:
    """Return the answers about runs, and about curves and their peaks."""
    entries = [{"curve": curve.to_dict(), "peak": peak} for curve, peak in curves]
    answer = json.loads(json.dumps(answer_page({"curves": entries, "runs": list(map(json.dumps, runs))})))
    return answer["fit"], answer["forecasts"]


def test_opened_log_is_that_of_loss_run() -> None:
    answer = opened(TEXT)
    run = json.loads(answer["run"])
    assert (Curve.from_dict(run["curve"]), run["peak"]) == (CURVE, PEAK)
    assert (run["steps"], run["losses"]) == (STEPS.tolist(), LOSSES.tolist())
    assert answer["advice"] == []
    half = StagedCurve([(1000, 0.5, "linear")], start=0.5)
    assert opened(TEXT, half)["largest_lr"] == 0.5 * PEAK


def test_columns_of_a_log_are_chosen() -> None:
    lrs = np.array([0, 5e-4, 1e-3, *np.linspace(1e-3, 1e-5, 47)])
    text = csv_of(step=STEPS, _step=STEPS, a_loss=LOSSES + 1, lr=lrs)
    unclear = opened(text, None, None)
    assert (unclear["argument"], unclear["columns"]) == ("step", ["step", "_step"])
    unclear = opened(text, None, None, step="step")
    assert (unclear["argument"], unclear["columns"]) == ("loss", ["step", "_step", "a_loss", "lr"])
    run = run_of(text, None, None, step="step", loss="a_loss")
    assert (run["losses"][0], run["peak"], run["lrs_from"]) == (LOSSES[0] + 1, 1e-3, 20)
    with suppress_warnings():
        assert Curve.from_dict(run["curve"])(STEPS) * 1e-3 == pytest.approx(lrs, abs=1e-8)


CURVES = st.builds(
    PlateauCurve,
    st.integers(500, 3000),
    warmup_steps=st.integers(0, 200),
    decay_shape=st.sampled_from(["linear", "cosine"]),
    plateaus=st.tuples(st.tuples(st.just(0), st.integers(0, 90))),
)


@examples(16)
@given(st.lists(st.tuples(CURVES, st.floats(0.7e-3, 1.4e-3)), min_size=1, max_size=4))
def test_forecasts_are_those_of_the_fit(pairs) -> None:
    """Each curve has its own peak; the differences are to the first. A warmup of no run has no interval."""
    _, answers = forecast([run_of(TEXT)], *pairs)
    is_known = [FIT.predict(*pair).is_known for pair in pairs]
    for index, ((curve, peak), shown) in enumerate(paired(pairs, answers)):
        expected = FIT.predict(curve, peak)
        limits = expected[1:3] if is_known[index] else (None, None)
        assert (shown["loss"], (shown["low"], shown["high"])) == (expected.loss, limits)
        assert shown["reasons"] == list(expected.reasons)
        difference = shown["difference"]
        assert (difference is None) == (index == 0)
        if difference:
            assert difference["difference"] == pytest.approx(shown["loss"] - answers[0]["loss"])
            assert (difference["low"] is None) == (not (is_known[0] and is_known[index]))
        if difference and difference["low"] is not None:
            is_same = shown["loss"] == answers[0]["loss"]
            contains_0 = difference["low"] <= 0 <= difference["high"]
            remark = "the same curve" if is_same else "not distinguishable" if contains_0 else ""
            assert difference["remark"] == remark
        line = shown["line"]
        assert line["steps"][-1] == curve.total_steps
        np.testing.assert_allclose(line["losses"], FIT.losses(curve, line["steps"], peak), rtol=1e-5)
        assert line["half_widths"][-1] == pytest.approx(expected.high - expected.loss, rel=1e-4)


def test_differences_are_those_of_a_comparison() -> None:
    expected = FIT.compare({"first": CURVE, "second": WSD}, PEAK).differences[1]
    _, (_, second) = forecast([run_of(TEXT)], (CURVE, PEAK), (WSD, PEAK))
    assert tuple(second["difference"][name] for name in ("difference", "low", "high")) == expected


def test_rejected_curves_do_not_hide_the_others() -> None:
    pairs = [(PlateauCurve(4001), PEAK), (ZERO, PEAK), (CURVE, 0), (CURVE, 2e-3), (CURVE, PEAK), (WSD, PEAK)]
    _, answers = forecast([run_of(TEXT)], *pairs)
    faults = [shown.get("fault", "") for shown in answers]
    assert "at most 4 times the 1000 steps of the longest run" in faults[0]
    assert faults[1] == faults[2] == "no learning rate above 0"
    assert "0.002, is more than a factor of 1.5" in faults[3]
    assert faults[4:] == ["", ""]
    assert answers[4]["difference"] is answers[5]["difference"] is None  # the first one has no forecast


def test_rejected_fits_name_the_log() -> None:
    few, constant = run_of(FEW), run_of(TEXT, StagedCurve([(1000,)], start=1.0))
    for runs, message in (
        ([few], "log the loss more often"),
        ([run_of(TEXT), {**few, "name": "other.csv"}], "other.csv: "),
        ([constant], "log a run with a decay"),
    ):
        fit, shown = forecast(runs, (CURVE, PEAK))
        assert message in fit["fault"]
        assert shown == []


def test_runs_are_drawn_as_they_were_logged_and_fitted() -> None:
    (run,) = forecast([run_of(TEXT)])[0]["runs"]
    logged = dict(zip(STEPS.tolist(), LOSSES.tolist(), strict=True))
    assert [logged[step] for step in run["steps"]] == pytest.approx(run["losses"], rel=1e-5)
    np.testing.assert_allclose(run["fitted_losses"], FIT.losses(CURVE, run["fitted_steps"]), rtol=1e-5)
    assert run["steps"][-1] == run["fitted_steps"][-1] == 1000


def test_kept_answers_have_their_advice(monkeypatch) -> None:
    """A log is read and fitted once."""

    def fit_and_warn(*group: Any) -> Any:
        warn("these losses lag behind")
        return fit_named_runs(*group)

    monkeypatch.setattr(forecasts, "fit_named_runs", fit_and_warn)
    run = run_of(csv_of(step=STEPS, loss=LOSSES + 0.375))
    first = forecast([run], (WSD, PEAK))
    assert first[0]["advice"] == ["these losses lag behind"]
    monkeypatch.setattr(forecasts, "fit_named_runs", None)
    monkeypatch.setattr(forecasts, "LossRun", None)
    assert forecast([run], (WSD, PEAK)) == first


def test_curves_are_forecast_by_runs_of_the_nearest_peak() -> None:
    extra = {5e-4: 0.02, 1e-3: 0.0, 2e-3: 0.01}
    half = StagedCurve([(50, 0.5), (950, 0.0)])
    runs = [run_at(peak, more) for peak, more in extra.items()]
    fitted, (at_peak, halved) = forecast(runs, (WSD, 1.45e-3), (half, 1e-3))
    fits = {peak: fit_losses(LossRun(CURVE, peak, STEPS, LOSSES + more)) for peak, more in extra.items()}
    assert at_peak["loss"] == fits[2e-3].predict(WSD, 1.45e-3).loss  # nearest by ratio
    assert halved["loss"] == fits[5e-4].predict(half, 1e-3).loss
    assert halved["difference"] is None
    shown = [run["losses"][-1] for run in fitted["runs"]]
    assert shown == pytest.approx([LOSSES[-1] + more for more in extra.values()], rel=1e-5)


def test_logs_that_miss_the_peak_are_fitted_together() -> None:
    """As `fit_losses` does."""
    columns = {"step": STEPS, "loss": LOSSES + 0.02, "lr": 0.9997 * PEAK * CURVE(STEPS - 1).astype(float)}
    run = run_of(csv_of(**columns), None, None)
    assert run["peak"] != PEAK
    _, (shown,) = forecast([run_of(TEXT), run], (WSD, PEAK))
    together = fit_losses([RUN, LossRun.read(rows_of(**columns))])
    assert shown["loss"] == together.predict(WSD, PEAK).loss


def test_runs_of_a_peak_that_cannot_be_fitted_are_named() -> None:
    few = run_of(FEW, CURVE, 5e-4) | {"name": "few.csv"}
    fitted, (shown, far) = forecast([few, run_at(1e-3), run_at(2e-3)], (WSD, 1e-3), (WSD, 8e-3))
    (advice,) = fitted["advice"]
    assert advice.startswith("few.csv: ")
    assert [run is None for run in fitted["runs"]] == [True, False, False]
    assert shown["loss"] == FIT.predict(WSD).loss
    assert "more than a factor of 1.5" in far["fault"]
