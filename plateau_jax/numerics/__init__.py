"""Exact levels, the table of segments, and the integer arithmetic that evaluates it."""
