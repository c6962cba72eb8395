"""Logged learning rates, and where and why they leave a curve.

`log_files` (text as rows), `log_table` (columns, cells, resumed runs), `printed` (learning rates as
intervals), `faults` (formulas that explain a log), `compare_log`. A new format is a function in
`log_files`, and a row in the tests of formats.
"""
