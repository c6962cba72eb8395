"""The optimizers of a training step: checked, unwrapped, and stepped."""
