"""Logged learning rates, and the curve that they follow or leave.

`logs` (files, columns, resumed runs), `printed` (learning rates as intervals), `step_ranges` (the
steps of a curve in an interval), `faults` (what explains a log), `comparison` (`compare_log`),
`stage_families` (the stages that are tried), `search` (the shortest sequences of them),
`found_curve` (`find_curve`).
"""
