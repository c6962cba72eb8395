"""The state of a training step: copy it, check it, load it."""
