"""The table of a curve, and its evaluation in integers.

`exact_segments` (the segments of a curve in exact numbers, and what can be decided from them),
`fitting` (from exact segments to polynomials with integer coefficients, with a certificate),
`evaluation` (the table as arrays, and the multiplier at a step), `segments` (what `Curve.segments`
lists).
"""
