"""The PyTorch side of plateau-jax: the curve as a scheduler, or within a whole training step.

Each public name is imported on first use, so `lambda_lr` does not import FSDP or safetensors. The
curves are those of `plateau_jax`.
"""

from torch_bridge.curve_api import lazy_names

__all__, __getattr__, __dir__ = lazy_names.attach(__name__, "torch")
