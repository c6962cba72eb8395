"""The constructors' messages in the words of the design page, and the field that each one is about."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import record_warnings

_PAIR = r"\((\S+), (\S+?)\)"
_PAIRS = rf"\[{_PAIR}(?:, {_PAIR})*(?:, \.\.\.)?\]"
_NAME = r"(?<!“)\b(\w+_(?:steps|shape|ratio))\b(?![}=”])"
_ITEM = r"(?:plateaus|absolute_plateaus|stages)\[(\d+)\]"

_UNNAMED = {
    "the curve is 0": "start",
    "the levels": "stages",
    "the cooldown": "at",
    "an exponential cooldown": "shape",
    "a t^": "shape",
}
"""The field of each message that does not begin with one."""

_CELLS = {"start": 0, "steps": 0, "duration": 1, "number of steps": 1, "to": 1, "shape": 2}
"""The position of each part in a pair or a stage."""


@dataclass(frozen=True)
class Message:
    """A message, and the place where the page shows it."""

    message: str
    """The text, with the names of fields in braces: the page has their labels."""
    path: tuple[str, ...] = ()
    """The keys of the curve, within the outermost one."""
    field: str | None = None
    """The field; None for the whole curve."""
    index: int | None = None
    """The item, if the field is a list."""
    cell: int | None = None
    """The part of the item; None for all of it."""


def fault_of(arguments: Any, error: Exception, path: tuple[str, ...] = ()) -> Message:
    """Return a constructor's message and its place: the innermost invalid curve and its field."""
    fields = cast("Mapping[str, Any]", arguments if isinstance(arguments, Mapping) else {})
    for name in ("curve", "other"):
        try:
            if name in fields:
                Curve.from_dict(fields[name])
        except (TypeError, ValueError) as inner_error:
            return fault_of(fields[name], inner_error, (*path, name))
    return placed_message(str(error), path, fields)


def advice_about(curve: Curve, peak: float, path: tuple[str, ...] = ()) -> Iterator[Message]:
    """Yield the constructors' warnings about a curve and, recursively, the curves it is derived from."""
    with record_warnings() as messages:
        replace(cast("Any", curve))  # runs the constructor again
    for message in messages:
        yield placed_message(message, path, vars(curve), peak)
    for name in ("curve", "other"):
        if isinstance(inner := getattr(curve, name, None), Curve):
            yield from advice_about(inner, peak, (*path, name))


def placed_message(text: str, path: tuple[str, ...], fields: Mapping[str, Any], peak: float = 0.0) -> Message:
    """Return a constructor's message about a curve with these fields, in the words of the page."""
    # Messages begin with the argument, as in "plateaus[1] = …": name "plateaus", index "1".
    label = re.match(r"(\w+)(?:\[(\d+)\])?", text)
    name, index = label.groups() if label else ("", None)
    name = next((field for begin, field in _UNNAMED.items() if text.startswith(begin)), name)
    part = re.match(rf"{_ITEM} = .*?: ({'|'.join(_CELLS)}) = ", text)
    return Message(
        in_page_words(text, peak),
        path=path,
        field=name if name in fields else None,
        index=None if index is None else int(index),
        cell=_CELLS[part[2]] if part else None,
    )


def in_page_words(text: str, peak: float = 0.0) -> str:
    """Return a message in the words of the page. It stands next to its field, so items need no number.

    >>> in_page_words("warmup_steps = 20000 must lie in 0 … total_steps - 1 = 9999")
    '{warmup_steps}: 20000 must lie between 0 and 9999'
    >>> in_page_words("plateaus[1] = [90, 200]: start and duration must lie in 0 … 100 %")
    'Start and length must lie between 0 and 100 %'
    """
    is_item = re.match(_ITEM, text)
    text = re.sub(rf"^{_ITEM}(?: = .*?)?(?:: (?=\w)| (?=must ))", "", text)
    if is_item:
        # A cell: the head of its column is a plain word.
        text = re.sub(r"^(duration|number of steps) = ", "Length: ", text)
        text = re.sub(r"^(start|steps|to|shape) = ", lambda found: f"{found[1].capitalize()}: ", text)
    text = re.sub(r"^(\w+) = (?=.*? (must|of|looks?|is)\b|.*?: )", r"{\1}: ", text)
    if peak:  # the shares to type
        text = re.sub(r"write \w+=(\S+) / peak", lambda found: f"type {float(found[1]) / peak:.4g}", text)
        text = re.sub(
            r"highest is (\S+), (.*)\. Write each as .*",
            lambda found: (
                f"highest is {found[1]}, {found[2]}. For {found[1]} type {float(found[1]) / peak:.4g}"
            ),
            text,
        )
    text = re.sub(r"is a share of all steps.*", "must be a whole number", text)
    text = re.sub(_NAME, r"{\1}", _reworded(text))
    return text if text.startswith("{") else text[:1].upper() + text[1:]


def in_json_words(text: str) -> str:
    """Return a message in the words of a JSON text: its keys are the arguments' names.

    >>> in_json_words("not the arguments of a PlateauCurve: missing keys ['total_steps'], unknown keys ['x']")
    'This is not a curve: “total_steps” is missing, “x” is unknown'
    """
    text = re.sub(r"^(\w+)\[(\d+)\] = ", lambda found: f"“{found[1]}”, item {int(found[2]) + 1}: ", text)
    text = re.sub(r"^(\w+) = (?=.* must |.*: )", r"“\1”: ", text)
    for word, json_word in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"(?<= ){word}\b", json_word, text)
    text = re.sub(_NAME, r"“\1”", _reworded(text))
    return text[:1].upper() + text[1:]


def _plateau(found: re.Match[str]) -> str:
    unit = "step {}, {} steps long," if found["absolute"] else "{} %, {} % long,"
    return "the plateau at " + unit.format(found["start"], found["length"])


def _start_and_length(found: re.Match[str]) -> str:
    pairs = re.findall(_PAIR, found[0])
    return "; ".join(
        f"length {length}" if start == "start" else f"start {start}, length {length}"
        for start, length in pairs
    )


def _range(found: re.Match[str]) -> str:
    return f"{'last ' if found[1] else ''}between {found[2]} and {found[3]}"


def _keys(found: re.Match[str]) -> str:
    keys = [re.findall(r"'(.*?)'", keys) for keys in found.groups()]
    words = [
        f"{', '.join(f'“{name}”' for name in names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in zip(keys, ("missing", "unknown"), strict=True)
        if names
    ]
    return f"this is not a curve: {', '.join(words)}"


_PLATEAU = r"\((?P<start>\S+), (?P<length>\S+)\)"
_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    # Kinds of values.
    (r"^(\S+): None must", r"\1 is empty: it must"),
    (
        r"must be an integer: a fraction of the total: (.*?) is warmup_steps=(\d+).*",
        r"must be a whole number; \1 is \2",
    ),
    (r"must be an integer.*", "must be a whole number"),
    (r"must be a mapping, .*", "must be a JSON object"),
    (r"must be a sequence of (\w+) .*", r"must be a list of \1"),
    (r"^must be a pair .*", "a plateau needs a start and a length"),
    (r"must be a pair .*", "must be a start and a length"),
    (r"must be a stage .*", "a stage needs steps; the level and the shape may be empty"),
    (r"^must not start", "the plateau must not start"),
    (
        r"^“arguments”: .* must be a JSON object",
        "this is not a curve: a curve is a JSON object with keys such as “total_steps”",
    ),
    (r"^not the arguments of a \w+: missing keys (\[.*?\]), unknown keys (\[.*\])", _keys),
    # Ranges.
    (r"2\*\*31 - 1 = ", ""),
    (r"finite and at least 2\*\*-126", "at least 1.2e-38"),
    (r"2\*\*(-?[\d.]+)", r"2^\1"),
    (r"is more than float32 can hold", "is too large"),
    (r"\bin \[(\S+), (\S+)\]", r"between \1 and \2"),
    (r"lie in \(0, 1\]", "be above 0 and at most 1"),
    (r"\b(?:in|(last)) (\d+) … (?:\w+ - 1 = )?(\d+)", _range),
    # Plateaus.
    (rf"(?P<absolute>absolute_)?plateaus: {_PLATEAU}(?= lasts)", _plateau),
    (rf"{_PLATEAU} of (?P<absolute>absolute_)?plateaus,?", _plateau),
    (rf"(?<=: )(?P<absolute>){_PLATEAU}(?= lasts)", _plateau),
    (rf"(?:absolute_)?plateaus ?= ?{_PAIRS}(?= look)", "the plateaus"),
    (r"^\{plateaus\}: \[.*?\] look", "the plateaus look"),
    (rf"(?<=is ){_PAIR}$", _start_and_length),
    (r"a number of steps: (?=absolute_plateaus=)", "a plateau in steps: "),
    (rf"(?:absolute_)?plateaus ?= ?{_PAIRS}", _start_and_length),
    (r"plateaus and absolute_plateaus|^plateaus(?= has)", "the plateaus"),
    (r"has durations", "have lengths"),
    (r"past total_steps = ", "past the end at step "),
    (r"\bduration", "length"),
    # Advice.
    (r"as start = 0 and", "as it starts at 0 and"),
    (r"write start=1\.0", "type 1"),
    (r"write StagedCurve\(.*", "add stages"),
    (r": StagedCurve\(.*", ""),
    (r"steps come first: \((.*)\)", r"steps come first: \1"),
    (r"^stages last", "the stages last"),
    (r"at \+ steps = (\d+)", r"the last step, \1,"),
    (r"\b([Ww])rite\b", lambda found: "Type" if found[1] == "W" else "type"),
    (r" \(char \d+\)$", ""),
    # Python's quotes.
    (r"'([^']*)'", r"“\1”"),
    (r'"([^"]*)"', r"“\1”"),
]
"""What to replace in messages, in this order. The rest is English already."""


def _reworded(text: str) -> str:
    for pattern, words in _RULES:
        text = re.sub(pattern, words, text)
    return text
