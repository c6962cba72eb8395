"""One update: forward and backward passes, gradients, loss, precision."""
