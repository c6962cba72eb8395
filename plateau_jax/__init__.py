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

# The folders next to `tools` are the curve. They never import `torch_bridge`, and `tools` only when
# a method such as `Curve.plot` is called.

# Each kind of curve registers itself, so that `Curve.from_dict` and `Curve.cooldown` find it.
from plateau_jax.curves import (
    derived_curves as derived_curves,
    plateau_curve as plateau_curve,
    scaled_curve as scaled_curve,
    staged_curve as staged_curve,
)
from plateau_jax.lazy_names import attach as _attach

_PUBLIC_NAMES = {
    "plateau_jax.arguments.curve_warning": ["CurveWarning"],
    "plateau_jax.clocks.clock": ["DataClock"],
    "plateau_jax.clocks.rules": ["HoldBelow", "HoldUntilFlat"],
    "plateau_jax.curves.curve": ["Curve"],
    "plateau_jax.curves.plateau_curve": ["PlateauCurve"],
    "plateau_jax.curves.several_curves": ["stack"],
    "plateau_jax.curves.staged_curve": ["StagedCurve"],
    "plateau_jax.runs.history": ["check_resume_file"],
    "plateau_jax.runs.record": ["resume_record"],
    "plateau_jax.runs.resume": ["check_resume"],
    "plateau_jax.runs.curve_scheduler": ["CurveScheduler"],
    "plateau_jax.in_jax.schedule": ["multiplier", "optax_schedule"],
    "plateau_jax.in_jax.transformation": ["scale_by_curve"],
    "plateau_jax.tools.batch_plan": ["BatchPlan"],
    "plateau_jax.tools.drawing.plots": ["plot"],
    "plateau_jax.tools.logged_lrs.compare_log": ["compare_log"],
    "plateau_jax.tools.theory.bounds": ["compare"],
}

__all__, __getattr__, __dir__ = _attach(
    __name__,
    _PUBLIC_NAMES,
    "jax",
    {"plateau_jax.in_jax.schedule": "jax", "plateau_jax.in_jax.transformation": "optax"},
)
