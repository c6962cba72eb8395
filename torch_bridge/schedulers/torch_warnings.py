"""What torch warns of when a scheduler is stepped, at the user's line.

torch's own `step` warns at the line that calls it, which is no line of the user's where a scheduler overrides
`step`.
"""

from torch.optim import Optimizer

from torch_bridge.core import warn

_SEE = "See https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"


def warn_of_order(optimizer: Optimizer) -> None:
    """Before a scheduler's first step: the optimizer has made none, or whether it has can't be seen.

    Warns:
        UserWarning: As torch does.
    """
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        warn(
            "Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization. "
            f"Please, make sure to call `optimizer.step()` before `lr_scheduler.step()`. {_SEE}",
            UserWarning,
        )
    elif not getattr(optimizer, "_opt_called", False):
        warn(
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in the opposite "
            "order: `optimizer.step()` before `lr_scheduler.step()`. Else the first value of the learning "
            f"rate schedule is skipped. {_SEE}",
            UserWarning,
        )


def warn_of_epoch() -> None:
    """Where a step is given its number.

    Warns:
        UserWarning: As torch does.
    """
    warn(
        "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()` without it",
        UserWarning,
    )
