"""A whole training step on the device, its parts, and what it reports."""
