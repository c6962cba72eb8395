"""Proofs of error bounds and of monotonicity, for every number that the arithmetic accepts."""
