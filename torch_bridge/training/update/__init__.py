"""One update: its forward and backward passes, gradients, loss and precision."""
