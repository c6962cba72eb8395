"""The curve in JAX: a pure function of the step, an optax schedule, and a transformation."""
