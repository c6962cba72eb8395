"""Forecast the losses of curves from the logged losses of runs."""
