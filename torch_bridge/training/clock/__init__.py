"""The clock of a training step: it counts updates, samples or tokens, and has learning rates."""
