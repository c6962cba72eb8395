"""The parameter groups of optimizers, and those that follow curves.

`optimizers` (the optimizers that a program passes), `options` (how a group keeps a value and its
base), `curves_and_peaks` (of each group, when a schedule is built), `members` (groups that are
added, removed and reordered).
"""
