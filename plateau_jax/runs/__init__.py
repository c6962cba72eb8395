"""A training run on the host, for every framework.

A run under `PlateauCurve(1000)` is saved after update 600, and resumes under another curve:

    PlateauCurve(2000)                       an error: they differ from step 1 on
    PlateauCurve(1000).cooldown(700, 100)    accepted: they are equal before step 600

So a record, which is saved with a run, contains the curve, and the comparison needs the step. It
contains the peak and the clock too: a curve is a fraction of the peak at a step of the clock.

`record` (the curve, peak and clock of a run, to be saved), `comparison` (of a run with the saved
one: what is an error and what a warning), `resume` (the position and the bases of a saved run, and
`check_resume`), `history` (`check_resume_file`), `schedules` (the learning rates of many steps at
once), `curve_scheduler` (`CurveScheduler`).
"""
