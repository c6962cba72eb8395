"""Labels of curves in a legend: their names, or the arguments that distinguish them."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.curves.serialization import CURVE_CLASSES


class NamedCurve(NamedTuple):
    """A curve, and the name that the user gave it, if any."""

    curve: Curve
    name: str | None = None


def legend_labels(named_curves: Sequence[NamedCurve]) -> list[str]:
    """Return a label per curve: its name, the arguments that distinguish it, or its class."""
    phrases_of_curves = [list(_phrases(named.curve.to_dict())) for named in named_curves]
    shared = set(phrases_of_curves[0]).intersection(*phrases_of_curves)
    classes = [phrases[0] for phrases in phrases_of_curves]
    descriptions: list[str] = []
    for phrases in phrases_of_curves:
        distinguishing = [phrase for phrase in phrases if phrase not in shared]
        if classes.count(phrases[0]) == 1 or not distinguishing:
            distinguishing = phrases[:1]
        description = ", ".join(distinguishing)
        descriptions.append(textwrap.shorten(description, 80, placeholder=" …"))

    labels: list[str] = []
    for index, (named, description) in enumerate(zip(named_curves, descriptions, strict=True)):
        if named.name is not None:
            labels.append(named.name)
        elif descriptions.count(description) == 1:
            labels.append(description)
        else:
            # Equal curves, or long descriptions that were shortened to the same text.
            labels.append(f"{index + 1}: {description}")
    return labels


def _phrases(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield the class and the arguments of a curve in words, also those of the curves in it.

    >>> list(_phrases({"kind": "plateau", "warmup_steps": 9, "plateaus": [[50, 30], [90, 5]]}))
    ['PlateauCurve', 'warmup steps 9', 'plateau (50, 30)', 'plateau (90, 5)']
    >>> list(_phrases({"kind": "staged", "stages": [[75, None, "linear"]]}))
    ['StagedCurve', 'stage (75, linear)']
    """
    for name, value in description.items():
        words = name.replace("_", " ")
        if name == "kind":
            yield CURVE_CLASSES[value].__name__
        elif isinstance(value, Mapping):
            yield from _phrases(cast("Mapping[str, Any]", value))
        elif isinstance(value, list):
            if not value:
                yield f"no {words}"
            for item in cast("list[Any]", value):
                parts = ", ".join(str(part) for part in item if part is not None)
                yield f"{words.removesuffix('s')} ({parts})"
        else:
            yield f"{words} {value}"
