"""The training loop around an update.

`evaluation`, `metric_log`.
"""
