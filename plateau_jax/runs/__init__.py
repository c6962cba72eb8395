"""A training run on the host, for every framework.

`record` (the curve, peak and clock of a run, to be saved), `comparison` (of a run with the saved
one: what is an error and what a warning), `resume` (the position and the bases of a saved run, and
`check_resume`), `history` (`check_resume_file`), `schedules` (the learning rates of many steps at
once), `curve_scheduler` (`CurveScheduler`).
"""
