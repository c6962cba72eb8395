"""The specs of all hold rules."""

from itertools import chain

from clocks.rules.spec import RuleSpec
from clocks.rules.test_below import BELOW
from clocks.rules.test_until_flat import UNTIL_FLAT

_SPECS = (UNTIL_FLAT, BELOW)

SPECS: dict[type, RuleSpec] = {spec.rule: spec for spec in _SPECS}
"""Every spec by the class of its rule."""

SAMPLES = [*chain.from_iterable(spec.samples for spec in _SPECS)]
"""Rules of every class, with every form of their arguments."""

ONE_OF_EACH = tuple(spec.samples[0] for spec in _SPECS)
"""One rule of every class."""
