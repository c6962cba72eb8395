"""Messages in the words of the design page and of a JSON text, and the place of each on the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from plateau_jax.curves.curve import Curve
from plateau_jax.design.questions import record_warnings
from plateau_jax.validation.messages import (
    LearningRate,
    Message,
    Name,
    Place,
    Setting,
    Stages,
    Subject,
    Words,
    plain,
    shown,
)

_CELLS = {"start": 0, "steps": 0, "duration": 1, "number of steps": 1, "to": 1, "shape": 2}
"""The position of each part in a pair or a stage."""

_ITEMS = {"stages": "the stage", "plateaus": "the plateau", "absolute_plateaus": "the plateau"}


@dataclass(frozen=True)
class PlacedMessage:
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


class _PlainWords(Words):
    """The words for readers who write no code."""

    is_plain = True

    def keyword(self, name: str) -> str:
        return self.name(Name(name))

    def setting(self, setting: Setting) -> str:
        pairs = (
            f"length {length}" if start == "start" else f"start {start}, length {length}"
            for start, length in setting.pairs
        )
        return "; ".join(pairs) or str(plain(setting.value))

    def learning_rate(self, rate: LearningRate) -> str:
        return f"the value of {rate.lr!r} / peak"

    def stages(self, stages: Stages) -> str:
        return ", ".join(self.text(shown(item)) for item in stages.stages[0])


def _head(part: str) -> str:
    """Return the heading of a part's column."""
    return "length" if part in ("duration", "number of steps") else part


class PageWords(_PlainWords):
    """The words of the page. A message stands next to its field, so items need no number.

    Args:
        peak: The peak learning rate, for which fractions of it are computed; 0 if it is not known.
    """

    def __init__(self, peak: float = 0.0) -> None:
        super().__init__()
        self._peak = peak

    def name(self, name: Name) -> str:
        # No field holds what is missing.
        return "" if name.is_missing else f"{{{name.name}}}"

    def learning_rate(self, rate: LearningRate) -> str:
        return f"{rate.lr / self._peak:.4g}" if self._peak else super().learning_rate(rate)

    def subject(self, subject: Subject) -> str:
        place, label = subject.place, self.name(Name(subject.place.argument))
        if place.part is not None:
            label = _head(place.part)
        elif place.index is not None:
            return "" if subject.clause else _ITEMS.get(place.argument, label)
        if subject.is_none:
            return f"{label} is empty: it"
        return f"{label}: {self.text(subject.value)}{': ' if subject.clause else ''}"

    def within(self, curves: Sequence[str]) -> str:
        return ""  # the message stands there


class JsonWords(_PlainWords):
    """The words of a JSON text: its keys are the arguments' names."""

    def name(self, name: Name) -> str:
        return f" unless “{name.name}” is given" if name.is_missing else f"“{name.name}”"

    def subject(self, subject: Subject) -> str:
        place = subject.place
        words = [
            self.name(Name(place.argument)) + ("" if place.index is None else f", item {place.index + 1}")
        ]
        words += [] if place.part is None else [_head(place.part)]
        words += [self.text(subject.value)] if subject.has_value else []
        return ": ".join([*words, ""] if subject.clause else words)


def placed_message(
    message: Message, arguments: Any, peak: float = 0.0, path: tuple[str, ...] = ()
) -> PlacedMessage:
    """Return a message about a curve with these arguments, in the words of the page, and its place."""
    fields = arguments
    for name in message.curves:
        fields = fields[name]
    place = message.place or Place("")
    return PlacedMessage(
        in_sentence(PageWords(peak), message),
        path=(*path, *message.curves),
        field=place.argument if isinstance(fields, Mapping) and place.argument in fields else None,
        index=place.index,
        cell=_CELLS.get(place.part or ""),
    )


def in_sentence(words: Words, message: Message) -> str:
    """Return a message with a capital letter, unless it begins with a field's label."""
    text = words.text(message)
    return text[:1].upper() + text[1:]


def advice_about(curve: Curve, peak: float, path: tuple[str, ...] = ()) -> Iterator[PlacedMessage]:
    """Yield the constructors' warnings about a curve and, recursively, the curves it is derived from."""
    with record_warnings() as messages:
        replace(cast("Any", curve))  # runs the constructor again
    for message in messages:
        yield placed_message(message, vars(curve), peak, path)
    for name in ("curve", "other"):
        if isinstance(inner := getattr(curve, name, None), Curve):
            yield from advice_about(inner, peak, (*path, name))
