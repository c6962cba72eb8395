"""The position of a run on the device.

`learning_rates` (looked up on the device), `device_clock` (counts updates, samples or tokens, and
applies hold rules).
"""
