"""Compare curves by a bound from theory, without a run.

`step_bins` (multipliers of many steps at once), `bounds` (the last-iterate bound).
"""
