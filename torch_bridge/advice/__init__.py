"""Warnings from watching a program. Nothing here changes a value; `advise=False` turns it off.

`position_warnings` (about a run past the end, or stuck at the start), `step_warnings` (a
scheduler's steps, peak and state, against the optimizer's updates), `run_warnings` and
`start_check` (of a `TrainStep`).
"""
