"""Labels of curves in a legend: their names, or the arguments that distinguish them."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from plateau_jax.curves.curve import Curve


class NamedCurve(NamedTuple):
    """A curve, and the name that the user gave it, if any."""

    curve: Curve
    name: str | None = None


def legend_labels(named_curves: Sequence[NamedCurve]) -> list[str]:
    """Return a label per curve: its name, else the arguments that distinguish it, else its kind."""
    arguments_of_curves = [list(_arguments(named.curve.to_dict())) for named in named_curves]
    shared = set(arguments_of_curves[0]).intersection(*arguments_of_curves)
    descriptions: list[str] = []
    for arguments in arguments_of_curves:
        distinguishing = [argument for argument in arguments if argument not in shared]
        description = ", ".join(distinguishing or arguments[:1])
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


def _arguments(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kind of a curve and each argument, also those of the curves it is derived from.

    >>> list(_arguments({"kind": "staged", "stages": [[9, 1.0], [5]], "start": 0.5}))
    ['staged', 'stages[0]=[9, 1.0]', 'stages[1]=[5]', 'start=0.5']
    """
    for name, value in description.items():
        if name == "kind":
            yield value
        elif isinstance(value, Mapping):
            yield from _arguments(cast("Mapping[str, Any]", value))
        elif isinstance(value, list) and value:
            for index, item in enumerate(cast("list[Any]", value)):
                yield f"{name}[{index}]={item}"
        else:
            yield f"{name}={value}"
