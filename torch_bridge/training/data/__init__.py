"""Data for a training loop.

`loader` and `resumable_loader` (resumes in the middle of an epoch), `prefetching` (to the device).
"""
