"""Curves for the learning rate, and for other options of an optimizer, as torch schedulers.

`group_scheduler` (a curve for one option of the groups), `update_hook` (sees the updates of the
optimizer), `curve_lr` (`lambda_lr`), `follower` (`follow`).
"""
