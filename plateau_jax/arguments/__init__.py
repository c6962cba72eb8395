"""The arguments that users pass.

`checks` (every check, and messages that begin with the path of an argument), `curve_warning` (the
warning about arguments that are valid, but probably a mistake).

A check is one line in one place. The path `("stages", 0, "to")` lets the design page find the
field; for a curve within a curve, `from_dict` adds a prefix. If a message is not about a single
value, write `Message(path, " last 90 steps, not …")`. Check a number of steps, samples or tokens
that a configuration may contain with `count`, which also reads strings such as `"10k"`. Add a row
to `ARGUMENTS` in `tests/curves/test_errors.py`, which tests the check in every place that takes a
curve.
"""
