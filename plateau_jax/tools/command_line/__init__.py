"""`python -m plateau_jax`.

`main` (answers the options), `option_parser`.
"""
