"""Allows `torch.load(weights_only=True)` to read curves, clocks, rules and batch plans.

`torch_bridge` imports this module first: a program that loads a checkpoint may not have used any
of its names yet. The constructors of these classes check what a file says.
"""

import torch

from torch_bridge.curve_api import VALUE_CLASSES

torch.serialization.add_safe_globals(VALUE_CLASSES)
