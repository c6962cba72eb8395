"""Clocks, which move a run along its curve, and rules that hold it."""
