"""The table of a curve, and its evaluation in integers.

`exact_segments` (the segments of a curve in exact numbers, and what can be decided from them),
`encoding` (the table of int32 columns, whose format no other file knows), `fixed_point` (finds the
row of a step, and evaluates the multiplier).
"""
