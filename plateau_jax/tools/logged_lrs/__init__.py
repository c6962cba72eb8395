"""Logged learning rates, and where and why they leave a curve.

`log_files` (text as rows), `logs` (columns, cells, resumed runs), `printed` (learning rates as
intervals), `faults` (formulas that explain a log), `compare_log`.
"""
