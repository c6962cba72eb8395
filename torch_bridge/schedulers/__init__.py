"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

`group_scheduler` (a curve for one option of the groups), `update_hook` (calls it before each update
of the optimizer), `scheduler_state` (states, also those of torch), `curve_lr` (`lambda_lr`),
`follower` (`follow`).
"""
