"""A learning-rate curve with warmup, cosine decay and plateaus: the same bits in every framework.

`PlateauCurve` describes the curve and needs only NumPy. Names that need JAX import it on first use;
`from plateau_jax import *` includes them if JAX is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plateau_jax import branches as branches  # its kinds of curve register themselves
from plateau_jax import checks
from plateau_jax.batch_plan import BatchPlan
from plateau_jax.comparison import Comparison, compare
from plateau_jax.curve import Curve
from plateau_jax.curve_warning import CurveWarning
from plateau_jax.holds import HoldBelow, HoldUntilFlat
from plateau_jax.last_iterate import Outlook, outlook
from plateau_jax.plateau_curve import CurveArguments, PlateauCurve
from plateau_jax.plotting import plot
from plateau_jax.segments import Segments, stack
from plateau_jax.staged import Stage, StagedCurve

if TYPE_CHECKING:
    __version__: str
    from plateau_jax.schedule import cosine_plateau_schedule, multiplier, optax_schedule
    from plateau_jax.transformation import CountedCurveState, ScaleByCurveState, scale_by_curve

__all__: list[str] = [
    "BatchPlan",
    "Comparison",
    "Curve",
    "CurveArguments",
    "CurveWarning",
    "HoldBelow",
    "HoldUntilFlat",
    "Outlook",
    "PlateauCurve",
    "Segments",
    "Stage",
    "StagedCurve",
    "compare",
    "outlook",
    "plot",
    "stack",
]
if checks.are_installed("jax", "jaxlib"):
    __all__ += ["cosine_plateau_schedule", "multiplier", "optax_schedule"]
if checks.are_installed("jax", "jaxlib", "optax"):
    __all__ += ["CountedCurveState", "ScaleByCurveState", "scale_by_curve"]

_LAZY = {
    "cosine_plateau_schedule": "plateau_jax.schedule",
    "multiplier": "plateau_jax.schedule",
    "optax_schedule": "plateau_jax.schedule",
    "CountedCurveState": "plateau_jax.transformation",
    "ScaleByCurveState": "plateau_jax.transformation",
    "scale_by_curve": "plateau_jax.transformation",
}

# This package may not import that one, so its names stand here too. A test compares them.
_IN_TORCH_BRIDGE = {
    "CarriedLoss",
    "Checkpoints",
    "CurveLR",
    "CurveLRState",
    "Follower",
    "FollowerState",
    "MeanLoss",
    "MetricLog",
    "PairLoss",
    "StepResult",
    "TrainStep",
    "TrainStepState",
    "checkpoint_activations",
    "count_updates",
    "distribute",
    "evaluate",
    "find_batch_size",
    "follow",
    "get_cosine_plateau_schedule_with_warmup",
    "is_main",
    "lambda_lr",
    "make_loader",
    "prefetch",
    "profile",
    "tensors",
}


if not TYPE_CHECKING:  # type checkers see the imports above, and every wrong name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return checks.installed_version()
        if name in _IN_TORCH_BRIDGE:
            raise checks.elsewhere(__name__, name, "torch_bridge")
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise checks.missing(name, error, "jax") from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
