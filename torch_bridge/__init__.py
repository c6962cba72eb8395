"""The PyTorch side of plateau-jax: the curve as a scheduler, or within a whole training step.

Each public name is imported on first use, so `lambda_lr` does not import FSDP or safetensors. The
curves are those of `plateau_jax`.
"""

from contextlib import suppress

from torch_bridge.curve_api import lazy_names

# The names that need torch say so if it is missing; the curves do without.
with suppress(ModuleNotFoundError):
    from torch_bridge import safe_globals as safe_globals

__all__, __getattr__, __dir__ = lazy_names.attach(__name__, "torch")
