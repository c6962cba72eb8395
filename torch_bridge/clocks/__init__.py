"""Which step of the curve is next, on the host and on the device, and its learning rates."""
