"""The public names: what type checkers see, and from where `lazy_names` imports each on first use."""

from plateau_jax.analysis.best_peaks import BestPeak as BestPeak
from plateau_jax.analysis.best_peaks import best_peak as best_peak
from plateau_jax.analysis.comparison import (
    Comparison as Comparison,
)
from plateau_jax.analysis.comparison import (
    compare as compare,
)
from plateau_jax.analysis.last_iterate import (
    Outlook as Outlook,
)
from plateau_jax.analysis.last_iterate import (
    outlook as outlook,
)
from plateau_jax.analysis.loss_comparison import (
    LossComparison as LossComparison,
)
from plateau_jax.analysis.loss_comparison import (
    LossForecast as LossForecast,
)
from plateau_jax.analysis.loss_fit import (
    LossFit as LossFit,
)
from plateau_jax.analysis.loss_fitting import (
    fit_losses as fit_losses,
)
from plateau_jax.analysis.loss_run import LossRun as LossRun
from plateau_jax.batch_plan import BatchPlan as BatchPlan
from plateau_jax.curves.curve import Curve as Curve
from plateau_jax.curves.plateau_curve import (
    CurveArguments as CurveArguments,
)
from plateau_jax.curves.plateau_curve import (
    PlateauCurve as PlateauCurve,
)
from plateau_jax.curves.staged_curve import (
    Stage as Stage,
)
from plateau_jax.curves.staged_curve import (
    StagedCurve as StagedCurve,
)
from plateau_jax.holds.rules import (
    HoldBelow as HoldBelow,
)
from plateau_jax.holds.rules import (
    HoldUntilFlat as HoldUntilFlat,
)
from plateau_jax.numerics.segments import (
    Segments as Segments,
)
from plateau_jax.numerics.segments import (
    stack as stack,
)
from plateau_jax.plots import plot as plot
from plateau_jax.resume import (
    check_resume as check_resume,
)
from plateau_jax.resume import (
    resume_record as resume_record,
)
from plateau_jax.schedule import (
    cosine_plateau_schedule as cosine_plateau_schedule,
)
from plateau_jax.schedule import (
    multiplier as multiplier,
)
from plateau_jax.schedule import (
    optax_schedule as optax_schedule,
)
from plateau_jax.transformation import (
    CountedCurveState as CountedCurveState,
)
from plateau_jax.transformation import (
    ScaleByCurveState as ScaleByCurveState,
)
from plateau_jax.transformation import (
    scale_by_curve as scale_by_curve,
)
from plateau_jax.validation.curve_warning import CurveWarning as CurveWarning

__version__: str
