"""Compare curves by a bound from theory, without a run.

`bounds` (the last-iterate bound).
"""
