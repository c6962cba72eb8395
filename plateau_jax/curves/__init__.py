"""The kinds of curves, how they are described, and how they are saved."""
