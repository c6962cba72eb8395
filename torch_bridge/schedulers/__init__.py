"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

`group_scheduler` (a curve for one option of the groups), `members` (groups that are added, removed
and reordered), `update_hook` (a call before each update of the optimizer), `scheduler_state`
(states, also those of torch), `lambda_lr` and `follow`.
"""
