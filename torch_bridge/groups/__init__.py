"""The parameter groups of optimizers, and those that follow curves.

`optimizers` (the optimizers that a program passes), `options` (how a group keeps a value and its
base), `curves_and_peaks` (of each group, when a schedule is built), `shown_lists` (what programs
write into `base_lrs` and `lr_lambdas`), `group_curves` (groups that come, go and move).
"""
