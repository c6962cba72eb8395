"""Checkpoints of a whole run: saved in the background, complete or absent, checked before they are loaded."""
