"""Forecast the losses of curves from the logged losses of runs.

`read_losses` (the losses of a log, and its curve), `loss_checks` (what is rejected), `loss_groups`
(which losses count), `loss_run` (a run, and the peaks of several), `loss_law` (its two sums over
the learning rates, and its fit), `loss_interval`, `forecast_reasons` and `loss_forecast` (what is
printed), `loss_fit` (the fit of several runs, and its forecasts), `loss_plot`.
"""
