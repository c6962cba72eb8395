"""All hold rules."""

from typing import get_args

from plateau_jax.clocks.hold_rule import HoldRule
from plateau_jax.clocks.rules import HoldBelow, HoldUntilFlat

Rule = HoldUntilFlat | HoldBelow
"""Every rule."""

RULES: dict[str, type[HoldRule]] = {rule._kind: rule for rule in get_args(Rule)}
"""Every rule by its kind."""
