"""The PyTorch side of plateau-jax: the curve as a scheduler, or within a whole training step.

Each public name is imported on first use, so `lambda_lr` does not import FSDP or
`torch.distributed.checkpoint`. The curves are those of `plateau_jax`.
"""

from contextlib import suppress

from torch_bridge.curve_api import lazy_names

# At import, because a program may load a checkpoint before it uses any name of this package.
# Without torch, curves work all the same, and every other name raises an error that says so.
with suppress(ModuleNotFoundError):
    from torch_bridge.safe_globals import allow_values

    allow_values()

__all__, __getattr__, __dir__ = lazy_names.attach(__name__, "torch")
