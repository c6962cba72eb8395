"""The clock of a training step: updates, samples or tokens, and the learning rates there."""
