"""Exact levels, fixed-point arithmetic, and exponentials in integers."""
