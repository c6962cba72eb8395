"""Exact numbers: percentages, levels, and their roundings.

`exact` is the only file.
"""
