"""The PyTorch side of plateau-jax: the curve as a scheduler, and as the clock of a whole training step.

`make_loader` needs torchdata, which is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from torch_bridge.core import checks

try:
    from torch_bridge.checkpointing.checkpoints import Checkpoints
    from torch_bridge.data.array_cache import cached_arrays
    from torch_bridge.data.prefetching import prefetch
    from torch_bridge.distributed.activation_checkpointing import checkpoint_activations
    from torch_bridge.distributed.distribution import distribute
    from torch_bridge.distributed.processes import is_main
    from torch_bridge.loop.batch_size import find_batch_size
    from torch_bridge.loop.evaluation import evaluate
    from torch_bridge.loop.metrics import MetricLog
    from torch_bridge.loop.profiling import profile
    from torch_bridge.schedulers.counting import count_updates
    from torch_bridge.schedulers.curve_lr import CurveLR, CurveLRState
    from torch_bridge.schedulers.factories import get_cosine_plateau_schedule_with_warmup, lambda_lr
    from torch_bridge.schedulers.follower import Follower, FollowerState, follow
    from torch_bridge.training.loss import CarriedLoss, MeanLoss, PairLoss
    from torch_bridge.training.result import StepResult
    from torch_bridge.training.snapshot import TrainStepState
    from torch_bridge.training.step import TrainStep
except ModuleNotFoundError as error:
    raise checks.missing("torch_bridge", error, "torch") from None

if TYPE_CHECKING:
    from torch_bridge.data import make_loader

__all__ = [
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
    "cached_arrays",
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
]


def __getattr__(name: str) -> Any:
    if name != "make_loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_bridge.data import make_loader

    globals()[name] = make_loader
    return make_loader


def __dir__() -> list[str]:
    return sorted(__all__)
