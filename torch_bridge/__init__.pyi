"""The public names, for type checkers. `__init__.py` lists them, too."""

from plateau_jax import (
    BatchPlan as BatchPlan,
    Curve as Curve,
    DataClock as DataClock,
    HoldBelow as HoldBelow,
    HoldUntilFlat as HoldUntilFlat,
    PlateauCurve as PlateauCurve,
    StagedCurve as StagedCurve,
)
from torch_bridge.schedulers.follow import follow as follow
from torch_bridge.schedulers.lambda_lr import lambda_lr as lambda_lr
from torch_bridge.tensor_table import (
    multiplier as multiplier,
    tensors as tensors,
)
from torch_bridge.training.checkpointing.checkpoints import Checkpoints as Checkpoints
from torch_bridge.training.data.loader import make_loader as make_loader
from torch_bridge.training.data.prefetching import prefetch as prefetch
from torch_bridge.training.distributed.distribute import distribute as distribute
from torch_bridge.training.loop.evaluation import evaluate as evaluate
from torch_bridge.training.loop.metric_log import MetricLog as MetricLog
from torch_bridge.training.train_step.step import TrainStep as TrainStep
from torch_bridge.update_count import count_updates as count_updates

__version__: str
