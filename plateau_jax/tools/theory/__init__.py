"""Compare curves by a bound from theory, without a run.

`step_bins` (sums over many steps), `bounds` (the last-iterate bound).
"""
