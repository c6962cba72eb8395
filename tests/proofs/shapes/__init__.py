"""The specs of the shapes, one file for each file of `plateau_jax/shapes`, with their proofs."""
