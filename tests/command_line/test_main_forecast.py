"""`python -m plateau_jax … --compare --fit LOG`, and `… --best-peak --fit LOG …`."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.rejections import rejected

from plateau_jax import Curve, LossRun, PlateauCurve, best_peak, fit_losses
from plateau_jax.__main__ import main

RUN = PlateauCurve(1000, warmup_steps=50)
LONGER = PlateauCurve(2000, plateaus=[(55, 40)])
NAME_OF_LONGER = "2000 steps, no warmup, plateau 55–95 %"
NO_WARMUP = "no run had so short a warmup: the loss may be higher by tenths of a nat"
STEPS = np.arange(20, 1001, 20)
LOSSES = 2.5 + (STEPS / 300) ** -0.5 + 0.05 * RUN(STEPS)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.csv"
    rows = [f"{step},{loss}" for step, loss in zip(STEPS, LOSSES, strict=True)]
    path.write_text("\n".join(["step,val_loss", *rows]))
    return str(path)


@pytest.fixture
def log_with_lr(tmp_path: Path) -> str:
    path = tmp_path / "log.jsonl"
    rows = zip(STEPS.tolist(), LOSSES.tolist(), (1e-3 * RUN(STEPS)).tolist(), strict=True)
    path.write_text("\n".join(json.dumps({"step": s, "loss": loss, "lr": lr}) for s, loss, lr in rows))
    return str(path)


def save(curve: Curve, path: Path) -> str:
    path.write_text(json.dumps(curve.to_dict()))
    return str(path)


def test_fit_prints_forecasts_of_all_curves(log, tmp_path, capsys) -> None:
    run, longer = save(RUN, tmp_path / "run.json"), save(LONGER, tmp_path / "longer.json")
    fit = fit_losses(LossRun.read(log, RUN, 1e-3))
    arguments = ["1000", "--compare", "--from", longer, "--peak", "1e-3", "--fit", log, run]
    assert main(arguments) == 0
    named = {"1000 steps, no plateau": PlateauCurve(1000), "2000 steps, plateau 55–95 %": LONGER}
    read = f"{log}: 50 logged losses, columns step = 'step', loss = 'val_loss'"
    out, err = capsys.readouterr()
    assert (out, err) == (f"{fit.compare(named, 1e-3)}\n", f"{read}\n")
    assert " ".join(out.split()).count(NO_WARMUP) == 2


def test_logged_learning_rates_suffice(log_with_lr, capsys) -> None:
    """One curve is enough, and several runs are fitted together."""
    assert main(["1500", "--compare", "--fit", log_with_lr, "--fit", log_with_lr]) == 0
    run = LossRun.read(log_with_lr)
    loss = fit_losses([run, run]).predict(PlateauCurve(1500)).loss
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    _, line, after, *_ = out.splitlines()
    assert first == second
    assert first.endswith("step = 'step', loss = 'loss', lr = 'lr'")
    assert f" {loss:.3f} " in line
    assert after == ""


@pytest.fixture
def logs_of_peaks(tmp_path: Path) -> list[str]:
    """Logs at the peaks 5e-4, 1e-3 and 2e-3; in the middle the losses are lower."""
    files: list[str] = []
    for peak, extra in ((5e-4, 0.02), (1e-3, 0.0), (2e-3, 0.01)):
        files.append(str(tmp_path / f"{peak}.csv"))
        rows = zip(STEPS, LOSSES + extra, (peak * RUN(STEPS)).tolist(), strict=True)
        lines = [f"{step},{loss},{lr}" for step, loss, lr in rows]
        Path(files[-1]).write_text("\n".join(["step,val_loss,lr", *lines]))
    return files


def test_best_peak_prints_one_line_per_curve(logs_of_peaks, tmp_path, capsys) -> None:
    fits = [word for file in logs_of_peaks for word in ("--fit", file)]
    runs = [LossRun.read(file) for file in logs_of_peaks]
    curve = PlateauCurve(1000, warmup_steps=50)
    assert main(["1000", "--warmup-steps", "50", "--best-peak", *fits]) == 0
    read = [
        f"{file}: 50 logged losses, columns step = 'step', loss = 'val_loss', lr = 'lr'"
        for file in logs_of_peaks
    ]
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == (f"{best_peak(runs, curve)}\n", read)
    longer = save(LONGER, tmp_path / "longer.json")
    assert main(["1000", "--warmup-steps", "50", "--from", longer, "--best-peak", *fits]) == 0
    out, err = capsys.readouterr()
    best = [best_peak(runs, curve) for curve in (curve, LONGER)]
    names = "1000 steps, linear warmup from 0 over 50 steps, no plateau", NAME_OF_LONGER
    assert out == "".join(f"{name}: {each}\n" for name, each in zip(names, best, strict=True))
    warmup, stage = best[1].forecast.reasons
    assert warmup == NO_WARMUP
    doubts = [f"less certain for {NAME_OF_LONGER}: {reason}" for reason in (warmup, stage)]
    assert err.splitlines() == [*read, *doubts]


THREE = ["--fit", "0", "--fit", "1", "--fit", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1000", "--best-peak"], "--best-peak requires --fit LOG"),
        (["1000", "--best-peak", "--peak", "1e-3", *THREE], "leave --peak out"),
        (["1000", "--best-peak", *THREE[:2]], "the runs at 0.00049"),
        (["9000", "--best-peak", *THREE], "at most 4 times the 1000 steps"),
        (["1000", "--from", "9000 steps", "--best-peak", *THREE], "at most 4 times the 1000 steps"),
        (["1000", "--best-peak", *THREE[:4], "--fit", "FEW"], "the peak 0.004: runs[2]: "),
        (["1000", "--best-peak", "--fit", "LOG"], "no learning rates among the columns 'step', 'val_loss'"),
        (["1000", "--best-peak", "--fit", "LATE"], "the run's curve"),
        (["1000", "--compare", *THREE[:4]], "or find the best peak with best_peak(runs, curve)"),
        *[
            (["1000", *more, "--best-peak", *THREE], "not allowed with argument --")
            for more in (["--json"], ["--csv", "-"], ["--compare"], ["--design"])
        ],
    ],
)
def test_bad_best_peaks_are_rejected(arguments, message, log, logs_of_peaks, tmp_path, capsys) -> None:
    files = {"LOG": log, "CURVE": save(RUN, tmp_path / "run.json")} | dict(
        zip("012", logs_of_peaks, strict=True)
    )
    files["9000 steps"] = save(PlateauCurve(9000), tmp_path / "9000.json")
    files["FEW"] = str(tmp_path / "few.csv")
    Path(files["FEW"]).write_text("step,val_loss,lr\n0,3.0,4e-3\n1,3.0,1e-3\n2,2.9,1e-3\n")
    files["LATE"] = str(tmp_path / "late.csv")
    rows = [f"{step},{loss},{1e-3 if step > 500 else ''}" for step, loss in zip(STEPS, LOSSES, strict=True)]
    Path(files["LATE"]).write_text("\n".join(["step,val_loss,lr", *rows]))
    error = rejected(capsys, [files.get(word, word) for word in arguments])
    assert message in error
    assert error.splitlines()[-1].startswith("python -m plateau_jax: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1000", "--fit", "LOG"], "--fit requires --compare"),
        (["1000", "--design", "--fit", "LOG"], "--fit requires --compare"),
        (
            ["1000", "--compare", "--fit", "LOG"],
            "no learning rates among the columns 'step', 'val_loss': give",
        ),
        (["1000", "--compare", "--fit", "LOG", "CURVE"], "give the run's curve and its peak"),
        (["1000", "--compare", "--fit", "SEVERAL", "CURVE"], "with LossRun.read(..., loss=...)"),
        (["1000", "--compare", "--fit", "none.csv"], "No such file or directory: 'none.csv'"),
        (["1000", "--compare", "--fit", "LOG", "none.json"], "No such file or directory: 'none.json'"),
        (["1000", "--compare", "--fit", "LOG", "CURVE", "CURVE"], "not 2 curves: repeat --fit"),
        (["1000", "--compare", "--fit", "LOG", "LOG"], "log.csv: Expecting value"),
        (["9000", "--compare", "--peak", "1", "--fit", "LOG", "CURVE"], "a forecast reaches at most 4 times"),
        (["1000", "--compare", "--peak", "0", "--fit", "LOG", "CURVE"], "peak"),
    ],
)
def test_bad_fits_are_rejected(arguments, message, log, tmp_path, capsys) -> None:
    files = {"LOG": log, "CURVE": save(RUN, tmp_path / "run.json"), "SEVERAL": str(tmp_path / "several.csv")}
    Path(files["SEVERAL"]).write_text("step,val_loss,eval_loss\n10,3,3\n")
    assert message in rejected(capsys, [files.get(word, word) for word in arguments])
