"""The page on which a curve is designed: `python -m plateau_jax --design`."""
