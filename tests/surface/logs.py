"""Logs of learning rates and losses, and forecasts."""

import numpy as np
from support.surface.limits import varied

from plateau_jax import LossRun, PlateauCurve, compare_log, fit_losses

curve = PlateauCurve(100)

# Logged learning rates, compared with a curve.
rows = [{"step": 0, "lr": 0.1}, {"step": 50, "lr": "5.00e-02"}]

compare_log(rows, curve, 0.1)  # LogComparison
compare_log(rows, curve, 0.2)  # LogComparison
compare_log(rows, curve, 0)  # raises ValueError
compare_log(rows, curve, varied(0.1))  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
compare_log(rows, 100, 0.1)  # raises TypeError
compare_log([{"step": 1, "rate": 0.1}], curve, 0.1)  # raises ValueError
compare_log([{"step": 1, "lr": -0.1}], curve, 0.1)  # raises ValueError
compare_log("missing.csv", curve, 0.1)  # raises FileNotFoundError

# Logged losses.
LossRun(curve, 0.1, [50, 100], [3.0, 2.5])  # LossRun
LossRun(curve, 0.1, [100, 50], [3.0, 2.5])  # raises ValueError
LossRun(curve, 0.1, [50, 100], [300.0, 250.0])  # LossRun, warns CurveWarning
LossRun(curve, "0.1", [50], [3.0])  # raises TypeError
LossRun(curve, varied(0.1), [50], [3.0])  # 1.1754943508222875e-38 … 3.4028235677973362e+38, else ValueError
LossRun(curve, 0.1, [varied(50)], [3.0])  # 1 … 100, else ValueError
LossRun(curve, 0.1, [50], [varied(3.0)])  # 7.006492321624087e-46 … 3.4028235677973362e+38, else ValueError
LossRun.read([{"step": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"global_step": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"train/global_step": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"trainer/global_step": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"iter": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"_step": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"applied": 50, "loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"epoch": 50, "loss": 3.0}], curve, 0.1)  # raises ValueError
LossRun.read([{"step": 50, "train_loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"step": 50, "train/loss": 3.0}], curve, 0.1)  # LossRun
LossRun.read([{"step": 50, "val_loss": 3.0}], curve, 0.1)  # raises ValueError
LossRun.read([{"step": step, "loss": 3.0, "lr": 0.05} for step in (50, 51)], curve)  # LossRun, warns CurveWarning
LossRun.read([{"step": step, "loss": 3.0, "learning_rate": 0.05} for step in (50, 51)], curve)  # LossRun, warns CurveWarning
LossRun.read([{"step": step, "loss": 3.0, "train/lr": 0.05} for step in (50, 51)], curve)  # LossRun, warns CurveWarning
LossRun.read([{"step": step, "loss": 3.0, "train/learning_rate": 0.05} for step in (50, 51)], curve)  # LossRun, warns CurveWarning
LossRun.read([{"step": step, "loss": 3.0, "rate": 0.05} for step in (50, 51)], curve)  # raises ValueError
LossRun.read("missing.csv")  # raises FileNotFoundError
LossRun.read(10)  # raises TypeError

# Forecasts.
steps = np.arange(10, 101, 3)
run = LossRun(curve, 0.1, steps, 2.5 + 2 * steps**-0.5)
fit = fit_losses(run)

fit_losses(run)  # LossFit
fit_losses([])  # raises ValueError
fit_losses([curve])  # raises TypeError
fit.predict(curve)  # LossForecast
fit.predict(curve) == fit.predict(curve, 0.1)  # True
fit.predict(PlateauCurve(5))  # raises ValueError
fit.predict(100)  # raises TypeError
fit.losses(curve, [50, 100])  # float64 array of shape (2,)
fit.losses(curve, [0])  # raises ValueError
fit.compare({"cosine": curve})  # LossComparison
fit.compare({})  # raises ValueError
fit.compare(curve)  # raises TypeError
