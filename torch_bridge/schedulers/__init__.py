"""Curves for the learning rate, as a torch scheduler, and for other options of an optimizer.

`scheduler_state` (the entries of a state, and the states of other schedulers), `update_hook` (what
runs before each update of an optimizer), `curve_lr` (`lambda_lr`), `follower` (`follow`).
"""
