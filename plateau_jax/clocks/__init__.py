"""Clocks, which move a run along its curve, and hold rules.

`hold_rule` (what a hold rule defines), `rules` (each with all that there is to know about it),
`known_rules` (the list), `decision` (of all rules of a run, for NumPy, JAX and torch), `clock` (the
argument `clock`, checked once for both packages), `position` (where a run is, and what moves it).
"""
