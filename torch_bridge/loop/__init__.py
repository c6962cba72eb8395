"""The training loop around an update."""
