"""Plots of curves: sampling, SVG for notebooks, matplotlib axes."""
