"""Curves for the learning rate, as a torch scheduler, and for other options of an optimizer."""
