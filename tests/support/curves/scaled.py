"""Curves that a batch plan has scaled, and curves derived from one."""

from plateau_jax import BatchPlan, Curve, PlateauCurve


def scaled(exponent: float = 0.5) -> Curve:
    """Return a curve of 300 steps of 8 samples; the batch grows and shrinks, also past the end."""
    plan = BatchPlan([(0, 24), (160, 14), (800, 50), (1600, 100), (2480, 70)])
    curve = PlateauCurve(300, warmup_steps=30, min_lr_ratio=0.1)
    return plan.scale(curve, 8, reference=100, exponent=exponent)


OF_UNIT_8 = [
    scaled(),
    scaled().cooldown(50, 20),
    scaled().part(10, 60),
    scaled().then(PlateauCurve(30)),
    PlateauCurve(30).then(scaled()),
    BatchPlan([(0, 1)]).scale(scaled(), 8, reference=1),
]
