"""The position of a run on the device.

`device_clock` (counts updates, samples or tokens, and looks up learning rates), `hold` (applies
hold rules).
"""
