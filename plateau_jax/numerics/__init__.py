"""Exact numbers, and integer arithmetic.

`exact` (percentages as rationals, levels of 100 digits, which are equal if they agree to 60, and
numbers of 224 bits), `arithmetic` (fixed point: one implementation for Python, NumPy, JAX and
torch), `exponents` (2^(-E) and logarithms in fixed point).
"""
