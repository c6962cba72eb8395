"""Checks of arguments, warnings, and public names that are imported on first use."""
