"""Compare curves by a bound from theory, without a run.

`curve_parts` (sums over many steps), `bounds` (the last-iterate bound).
"""
