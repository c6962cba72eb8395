"""The PyTorch side of plateau-jax: the curve as a scheduler, and as the clock of a whole training step.

Each public name is imported on first use, so `lambda_lr` does not import FSDP or
safetensors. The curves are those of `plateau_jax`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_bridge.core import NAMES_OF_PLATEAU_JAX, Curve, PlateauCurve, StagedCurve, checks

if TYPE_CHECKING:
    __version__: str
    from torch_bridge.checkpointing.checkpoints import Checkpoints
    from torch_bridge.data.loader import make_loader
    from torch_bridge.data.prefetching import prefetch
    from torch_bridge.distributed.activation_checkpointing import checkpoint_activations
    from torch_bridge.distributed.distribution import distribute
    from torch_bridge.distributed.processes import is_main
    from torch_bridge.loop.batch_size import find_batch_size
    from torch_bridge.loop.evaluation import evaluate
    from torch_bridge.loop.metrics import MetricLog
    from torch_bridge.loop.profiling import profile
    from torch_bridge.schedulers.curve_lr import CurveLR, CurveLRState
    from torch_bridge.schedulers.factories import (
        count_updates,
        get_cosine_plateau_schedule_with_warmup,
        lambda_lr,
    )
    from torch_bridge.schedulers.follower import Follower, FollowerState, follow
    from torch_bridge.table import multiplier, tensors
    from torch_bridge.training.loss import CarriedLoss, MeanLoss, PairLoss
    from torch_bridge.training.result import StepResult
    from torch_bridge.training.snapshot import TrainStepState
    from torch_bridge.training.step import TrainStep

__all__: list[str] = [
    "CarriedLoss",
    "Checkpoints",
    "Curve",
    "CurveLR",
    "CurveLRState",
    "Follower",
    "FollowerState",
    "MeanLoss",
    "MetricLog",
    "PairLoss",
    "PlateauCurve",
    "StagedCurve",
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
    "multiplier",
    "prefetch",
    "profile",
    "tensors",
]

_LAZY = {
    "CarriedLoss": "torch_bridge.training.loss",
    "Checkpoints": "torch_bridge.checkpointing.checkpoints",
    "CurveLR": "torch_bridge.schedulers.curve_lr",
    "CurveLRState": "torch_bridge.schedulers.curve_lr",
    "Follower": "torch_bridge.schedulers.follower",
    "FollowerState": "torch_bridge.schedulers.follower",
    "MeanLoss": "torch_bridge.training.loss",
    "MetricLog": "torch_bridge.loop.metrics",
    "PairLoss": "torch_bridge.training.loss",
    "StepResult": "torch_bridge.training.result",
    "TrainStep": "torch_bridge.training.step",
    "TrainStepState": "torch_bridge.training.snapshot",
    "checkpoint_activations": "torch_bridge.distributed.activation_checkpointing",
    "count_updates": "torch_bridge.schedulers.factories",
    "distribute": "torch_bridge.distributed.distribution",
    "evaluate": "torch_bridge.loop.evaluation",
    "find_batch_size": "torch_bridge.loop.batch_size",
    "follow": "torch_bridge.schedulers.follower",
    "get_cosine_plateau_schedule_with_warmup": "torch_bridge.schedulers.factories",
    "is_main": "torch_bridge.distributed.processes",
    "lambda_lr": "torch_bridge.schedulers.factories",
    "make_loader": "torch_bridge.data.loader",
    "multiplier": "torch_bridge.table",
    "prefetch": "torch_bridge.data.prefetching",
    "profile": "torch_bridge.loop.profiling",
    "tensors": "torch_bridge.table",
}


if not TYPE_CHECKING:  # type checkers see the imports above, and every wrong name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return checks.installed_version()
        if name in NAMES_OF_PLATEAU_JAX and name not in _LAZY:
            raise checks.elsewhere(__name__, name, "plateau_jax")
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise checks.missing(name, error, "torch") from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
