"""Lets `torch.load(weights_only=True)` read curves, clocks, rules and batch plans."""

import torch

from plateau_jax import BatchPlan
from plateau_jax.clocks.clock import CLOCKS
from plateau_jax.curves.serialization import CURVE_CLASSES


def allow_values() -> None:
    """Add the classes to torch's list; their constructors check what a file contains."""
    torch.serialization.add_safe_globals([*CURVE_CLASSES.values(), BatchPlan, *CLOCKS.values()])
