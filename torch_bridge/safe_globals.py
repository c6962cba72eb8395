"""Lets `torch.load(weights_only=True)` read curves, clocks and rules."""

import torch

from plateau_jax.clocks.clock import DataClock
from plateau_jax.clocks.rules import HOLD_RULE_CLASSES
from plateau_jax.curves.serialization import CURVE_CLASSES


def register_safe_globals() -> None:
    """Add the classes to torch's list; their constructors check what a file contains."""
    torch.serialization.add_safe_globals([*CURVE_CLASSES.values(), DataClock, *HOLD_RULE_CLASSES])
