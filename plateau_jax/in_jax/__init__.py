"""The curve in JAX.

`schedule` (a pure function of the step, and the optax schedule), `transformation`
(`scale_by_curve`). Only `transformation` imports optax; only these files and
`BatchPlan.every_k_schedule` import JAX.
"""
