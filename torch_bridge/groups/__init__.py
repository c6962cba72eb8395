"""The parameter groups that follow curves: the curve, the base and the value of each."""
