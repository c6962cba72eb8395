"""A training run on the host, for every framework.

`record` (the curve, peak and clock of a run, to be saved), `saved_run` (what a state says about its
run, and the position at which it resumes), `policy` (which differences are errors and which are
warnings), `comparison` (of a run with the saved one), `resume` and `history` (`check_resume`,
`check_resume_file`), `host_clock` (updates, samples or tokens, and rules that hold), `values_ahead`
(learning rates of many steps at once), `scheduler` (`CurveScheduler`).
"""
