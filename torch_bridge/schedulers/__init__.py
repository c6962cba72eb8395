"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

`scheduled_groups` (groups that are added, removed and reordered, and their values),
`group_scheduler` (the steps, the clock and the states of a schedule for one option), `update_hook`
(a call before each update of the optimizer), `scheduler_state` (states, also those of torch),
`lambda_lr` and `follow`.
"""
