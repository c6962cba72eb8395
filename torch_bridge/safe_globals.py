"""Lets `torch.load(weights_only=True)` read curves, clocks, rules and batch plans."""

import torch

from torch_bridge.curve_api import VALUE_CLASSES


def allow_values() -> None:
    """Add the classes to torch's list; their constructors check what a file contains."""
    torch.serialization.add_safe_globals(VALUE_CLASSES)
