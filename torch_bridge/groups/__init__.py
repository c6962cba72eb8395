"""The parameter groups of optimizers.

`optimizers` (the optimizers that a program passes, and the updates that their states show),
`options` (how a group keeps a value and its base), `curves_and_peaks` (of each group, when a
schedule is built).
"""
