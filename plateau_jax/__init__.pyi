"""The public names, for type checkers. `__init__.py` lists them, too."""

from plateau_jax.arguments.curve_warning import CurveWarning as CurveWarning
from plateau_jax.clocks.clock import DataClock as DataClock
from plateau_jax.clocks.rules import (
    HoldBelow as HoldBelow,
    HoldUntilFlat as HoldUntilFlat,
)
from plateau_jax.curves.curve import Curve as Curve
from plateau_jax.curves.plateau_curve import PlateauCurve as PlateauCurve
from plateau_jax.curves.several_curves import stack as stack
from plateau_jax.curves.staged_curve import StagedCurve as StagedCurve
from plateau_jax.in_jax.schedule import (
    multiplier as multiplier,
    optax_schedule as optax_schedule,
)
from plateau_jax.in_jax.transformation import scale_by_curve as scale_by_curve
from plateau_jax.runs.curve_scheduler import CurveScheduler as CurveScheduler
from plateau_jax.runs.history import check_resume_file as check_resume_file
from plateau_jax.runs.record import resume_record as resume_record
from plateau_jax.runs.resume import check_resume as check_resume
from plateau_jax.tools.batch_plan import BatchPlan as BatchPlan
from plateau_jax.tools.drawing.plots import plot as plot
from plateau_jax.tools.logged_lrs.compare_log import compare_log as compare_log
from plateau_jax.tools.theory.bounds import compare as compare

__version__: str
