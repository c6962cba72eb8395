"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

`group_scheduler` (the groups, steps, clock and states of a schedule for one option),
`scheduler_state` (states, also those of torch), `lambda_lr` and `follow`.
"""
