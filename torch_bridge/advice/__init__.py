"""Warnings from watching a program. Nothing here changes a value.

`advise=False` turns them off, except those of a follower and those about factors that nobody reads.

`value_advice` (what groups contain), `position_advice` (about a run past the end, or stuck at the
start), `step_advice` (a scheduler's steps against the optimizer's updates, which a hook counts).
"""
