"""The state of a training step: saved, compared, and loaded."""
