"""The PyTorch side of plateau-jax: the curve as a scheduler, and as the clock of a whole training step."""

from torch_bridge.evaluation import evaluate
from torch_bridge.metrics import MetricLog, StepResult
from torch_bridge.profiling import profile
from torch_bridge.scheduler import get_cosine_plateau_schedule_with_warmup, lambda_lr
from torch_bridge.train_step import TrainStep

__all__ = [
    "MetricLog",
    "StepResult",
    "TrainStep",
    "evaluate",
    "get_cosine_plateau_schedule_with_warmup",
    "lambda_lr",
    "profile",
]
