"""The PyTorch half of plateau-jax, with the curves and clocks of `plateau_jax`.

Begin with these names:

    StagedCurve      any sequence of stages; StagedCurve.wsd is warmup–stable–decay in one line
    PlateauCurve     a warmup, then a cosine or another decay with plateaus
    lambda_lr        a curve as a torch scheduler
    follow           a curve for the weight decay, or another option of an optimizer
    DataClock        counts samples or tokens instead of updates
    HoldUntilFlat    holds a plateau until the loss is flat
    count_updates    the number of updates in a run
    Checkpoints      saves and resumes a run, on any number of ranks
    make_loader      a data loader that resumes in the middle of an epoch
    TrainStep        a whole update in one call, without waiting for the device

Each name is imported on first use, so `lambda_lr` does not import FSDP or
`torch.distributed.checkpoint`.
"""

from contextlib import suppress

from plateau_jax.lazy_names import attach as _attach

# At import, because a program may load a checkpoint before it uses any name of this package.
# Without torch, `count_updates` and the names of `plateau_jax` work all the same; every other name
# raises an error that says so.
with suppress(ModuleNotFoundError):
    from torch_bridge.safe_globals import register_safe_globals

    register_safe_globals()

_PUBLIC_NAMES = {
    "plateau_jax": [
        "BatchPlan",
        "Curve",
        "DataClock",
        "HoldBelow",
        "HoldUntilFlat",
        "PlateauCurve",
        "StagedCurve",
    ],
    "torch_bridge.schedulers.lambda_lr": ["lambda_lr"],
    "torch_bridge.schedulers.follow": ["follow"],
    "torch_bridge.tensor_table": ["multiplier", "tensors"],
    "torch_bridge.update_count": ["count_updates"],
    "torch_bridge.training.checkpointing.checkpoints": ["Checkpoints"],
    "torch_bridge.training.data.loader": ["make_loader"],
    "torch_bridge.training.data.prefetching": ["prefetch"],
    "torch_bridge.training.distributed.distribute": ["distribute"],
    "torch_bridge.training.loop.evaluation": ["evaluate"],
    "torch_bridge.training.loop.metric_log": ["MetricLog"],
    "torch_bridge.training.train_step.step": ["TrainStep"],
}

__all__, __getattr__, __dir__ = _attach(__name__, _PUBLIC_NAMES, "torch")
