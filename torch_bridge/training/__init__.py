"""A whole training step on the device, what it reports, and what is done around it."""
