"""The table of a curve, and its evaluation in integers."""
