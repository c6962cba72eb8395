"""A learning-rate schedule, described once: the same bits in NumPy, JAX and PyTorch.

Begin with these names:

    StagedCurve       any sequence of stages; StagedCurve.wsd is warmup–stable–decay in one line
    PlateauCurve      a warmup, then a cosine or another decay with plateaus
    optax_schedule    a curve as an optax schedule
    scale_by_curve    a curve as an optax transformation, with a clock
    resume_record     what to save with a run, so that a changed schedule is noticed
    check_resume      raises an error if the schedule of a resumed run contradicts its past
    DataClock         counts samples or tokens instead of updates
    HoldUntilFlat     holds a plateau until the loss is flat
    BatchPlan         batch sizes that grow, and learning rates that follow them
    compare           bounds and best peaks of several curves, from theory

Every curve has `describe`, `plot`, `cooldown`, `then`, `part` and `to_source`. For PyTorch, see
`help(torch_bridge)`. Only the names that need JAX import it.
"""

# Each kind of curve registers itself, so that `Curve.from_dict` and `Curve.cooldown` find it.
from plateau_jax.curves import (
    derived_curves as derived_curves,
    plateau_curve as plateau_curve,
    scaled_curve as scaled_curve,
    staged_curve as staged_curve,
)
from plateau_jax.lazy_names import attach as _attach

__all__, __getattr__, __dir__ = _attach(
    __name__,
    "jax",
    {"plateau_jax.schedules.schedule": "jax", "plateau_jax.schedules.transformation": "optax"},
)
