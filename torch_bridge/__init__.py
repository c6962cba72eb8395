"""The PyTorch side of plateau-jax: the curve as a scheduler, or within a whole training step.

Each public name is imported on first use, so `lambda_lr` does not import FSDP or safetensors. The
curves are those of `plateau_jax`.
"""

from contextlib import suppress

from torch_bridge.curve_api import lazy_names

# Now, because a program that loads a checkpoint may not use another name before. The names that
# need torch say so if it is missing; the curves do without.
with suppress(ModuleNotFoundError):
    from torch_bridge.safe_globals import allow_values

    allow_values()

__all__, __getattr__, __dir__ = lazy_names.attach(__name__, "torch")
