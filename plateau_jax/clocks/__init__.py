"""What moves a run along its curve: the argument `clock`, and hold rules with their decision function."""
