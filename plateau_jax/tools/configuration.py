"""Curves from files in JSON or YAML, from the command line, and from the fields of the design page.

`Curve.from_dict` expects numbers where a curve has numbers. On a command line and in the fields of
a page, every value is text.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from plateau_jax.arguments import checks
from plateau_jax.curves.curve import Curve
from plateau_jax.curves.plateau_curve import PlateauCurve
from plateau_jax.curves.serialization import build
from plateau_jax.curves.staged_curve import StagedCurve


def curve_from_text(description: Any) -> Curve:
    """Build the curve of a description whose numbers may be text."""
    return Curve.from_dict(parse_numbers(description))


def curve_from_options(options: Mapping[str, Any]) -> Curve:
    """Build the curve that options of the command line describe, by the names of the arguments.

    With `wsd`, they are the arguments of `StagedCurve.wsd`; with `stages`, those of a
    `StagedCurve`; else those of a `PlateauCurve`.
    """
    arguments = dict(options)
    constructor: Callable[..., Curve] = PlateauCurve
    if arguments.pop("wsd", None):
        constructor = StagedCurve.wsd
    elif "stages" in arguments:
        constructor = StagedCurve
    return build(constructor, parse_numbers(arguments))


def read_curve_file(name: str, content: bytes) -> Curve:
    """Build the curve that a file describes, in YAML if its name says so, else in JSON."""
    if Path(name).suffix.lower() not in (".yaml", ".yml"):
        return Curve.from_dict(checks.parse_json(content))
    if not content.strip():
        raise ValueError("the file is empty")
    try:
        import yaml  # an optional dependency
    except ModuleNotFoundError:
        raise ValueError("to read YAML, pip install pyyaml") from None
    try:
        return Curve.from_dict(yaml.safe_load(content))
    except yaml.YAMLError as error:
        raise ValueError(f"this is not YAML: {checks.short_text(str(error))}") from None


def parse_numbers(value: Any) -> Any:
    """Replace strings that are numbers, also within mappings and sequences.

    >>> parse_numbers({"total_steps": "1e4", "stages": [["2%", "1.0", "linear"]]})
    {'total_steps': 10000, 'stages': [['2%', 1.0, 'linear']]}
    """
    if isinstance(value, str):
        return checks.parse_number(value)
    if isinstance(value, list | tuple):
        return [parse_numbers(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: parse_numbers(item) for name, item in items}
    return value
