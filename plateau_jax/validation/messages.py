"""Messages as data: Python, the command line, the design page and JSON texts each word their parts.

A check writes a message once:

    raise ValueError(Message(Subject("warmup_steps", 9), " must ", within(0, 8)))

`str(error)` is Python's wording; `message_of(error)` is the data, which any `Words` turns into text.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast


@dataclass(frozen=True)
class Place:
    """An argument; or an item of one, such as `plateaus[1]`; or a part of an item, such as its `start`."""

    argument: str
    index: int | None = None
    part: str | None = None
    item: Any = None
    """The item, if there is one."""

    def with_part(self, part: str) -> "Place":
        return replace(self, part=part)


@dataclass(frozen=True)
class Wording:
    """Two wordings of one part: for readers of code, and for those who fill in fields or read JSON."""

    code: "Parts"
    plain: "Parts"


@dataclass(frozen=True)
class Name:
    """An argument that a sentence mentions."""

    name: str
    is_missing: bool = False
    """True for an argument that is needed but was not given."""


@dataclass(frozen=True)
class Keyword:
    """An argument to give, as in `curve=`."""

    name: str


@dataclass(frozen=True)
class Setting:
    """An argument with a value, as in `start=1.0`; `pairs` are those of plateaus."""

    name: str
    value: Any = None
    pairs: tuple[tuple[Any, Any], ...] = ()
    is_given: bool = False
    """True for what the user has given, as in `start = 0 and`; False for what to write."""


@dataclass(frozen=True)
class Pair:
    """One pair of an argument that holds several, such as a plateau."""

    argument: str
    pair: tuple[Any, Any]


@dataclass(frozen=True)
class Stages:
    """Stages to write: those of a `StagedCurve`, or a single one."""

    stages: tuple[tuple[Any, ...], ...]
    start: float | None = None
    is_curve: bool = True


@dataclass(frozen=True)
class LearningRate:
    """A learning rate to write as a fraction of the peak, perhaps for an argument."""

    lr: float
    name: str | None = None


class Subject:
    """A place and its value, with which a sentence begins; `clause` is True if a colon follows."""

    def __init__(self, place: Place | str, *value: Any, clause: bool = False) -> None:
        place = Place(place) if isinstance(place, str) else place
        item: Any = place.item if place.part is not None else value[0] if value else None
        # As text: an error must not keep the user's objects alive, and can be pickled whatever they are.
        self.place = replace(place, item=None)
        self.item = shown(item)
        items = cast("Sequence[Any]", item) if isinstance(item, list | tuple) else [item]
        self.words = tuple(map(unquoted, items))
        self.value = shown(value[0]) if value else Wording("", "")
        self.has_value = bool(value)
        self.is_none = self.has_value and value[0] is None
        self.clause = clause


Part = str | float | Wording | Name | Keyword | Setting | Pair | Stages | LearningRate | Subject
Parts = Part | Sequence[Part]


class Message(str):
    """A message: Python's wording as a string, its parts, and the place that it is about.

    Args:
        parts: Text that is the same everywhere, data, and other messages.
        at: The place, if the message does not begin with it.
        curves: The keys of the curve that it is about, within the outermost one.
    """

    parts: tuple[Part, ...]
    place: Place | None
    curves: tuple[str, ...]

    def __new__(cls, *parts: Part, at: Place | str | None = None, curves: Sequence[str] = ()) -> "Message":
        flattened = (part.parts if isinstance(part, Message) else [part] for part in parts)
        flat = tuple(part for inner in flattened for part in inner)
        message = super().__new__(cls, PYTHON.text(flat) + PYTHON.within(curves))
        subject = next((part.place for part in flat if isinstance(part, Subject)), None)
        message.parts = flat
        message.place = (Place(at) if isinstance(at, str) else at) or subject
        message.curves = tuple(curves)
        return message


def message_of(error: BaseException) -> Message:
    """Return the message of an error or a warning; one of Python or another library is a single text."""
    message = error.args[0] if error.args else ""
    return message if isinstance(message, Message) else Message(str(error))


class Words:
    """Python's words for the data in a message. Subclasses are those of other surfaces.

    Args:
        names: The surface's names for arguments, if they differ.
    """

    is_plain = False
    """True for the second of two wordings."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.names = names or {}

    def text(self, parts: Parts) -> str:
        """Return the parts as one text."""
        match parts:
            case Message():
                return self.text(parts.parts) + self.within(parts.curves)
            case str() | int() | float():
                return str(parts)
            case Wording():
                return self.text(parts.plain if self.is_plain else parts.code)
            case Name():
                return self.name(parts)
            case Keyword():
                return self.keyword(parts.name)
            case Setting():
                return self.setting(parts)
            case Pair():
                return self.pair(parts)
            case Stages():
                return self.stages(parts)
            case LearningRate():
                return self.learning_rate(parts)
            case Subject():
                return self.subject(parts)
            case _:
                return "".join(map(self.text, parts))

    def name(self, name: Name) -> str:
        return self.names.get(name.name, name.name)

    def keyword(self, name: str) -> str:
        return f"{self.name(Name(name))}="

    def setting(self, setting: Setting) -> str:
        pairs = f"[{listed(f'({first}, {second})' for first, second in setting.pairs)}]"
        name = f"{self.name(Name(setting.name))} = " if setting.is_given else self.keyword(setting.name)
        return name + (pairs if setting.pairs else repr(setting.value))

    def pair(self, pair: Pair) -> str:
        return f"{pair.pair} of {self.name(Name(pair.argument))}"

    def stages(self, stages: Stages) -> str:
        if not stages.is_curve:
            return str(stages.stages[0])
        start = "" if stages.start is None else f", start={stages.start}"
        return f"StagedCurve({list(stages.stages)}{start})"

    def learning_rate(self, rate: LearningRate) -> str:
        return ("" if rate.name is None else self.keyword(rate.name)) + f"{rate.lr!r} / peak"

    def subject(self, subject: Subject) -> str:
        place = subject.place
        text = self.name(Name(place.argument)) + ("" if place.index is None else f"[{place.index}]")
        if place.part is not None:
            text += (
                f": {place.part}" if place.index is None else f" = {self.text(subject.item)}: {place.part}"
            )
        if subject.has_value:
            text += f" = {self.text(subject.value)}"
        return f"{text}: " if subject.clause else text

    def within(self, curves: Sequence[str]) -> str:
        """Say which curve a message is about, if it is not the outermost one."""
        return f" (in {'.'.join(curves)})" if curves else ""


PYTHON = Words()


INTEGER = Wording("an integer", "a whole number")
WRITE = Wording("write", "type")
CAPITAL_WRITE = Wording("Write", "Type")
MAX_INT32 = Wording("2**31 - 1 = 2147483647", "2147483647")


def code(*parts: Part) -> Wording:
    """Return parts that only readers of code see."""
    return Wording(parts, "")


def shown(value: Any) -> Wording:
    """Return a value: its repr, and JSON with strings in quotation marks."""
    return Wording(short_repr(value), f"“{_shortened(value)}”" if isinstance(value, str) else _as_json(value))


def choices(
    values: Iterable[Any], separator: str = ", ", show: Callable[[Any], Part] | None = None
) -> list[Part]:
    """Return several values, each as `shown` by default."""
    return [part for value in values for part in (separator, (show or shown)(value))][1:]


def within(low: Part, high: Part, brackets: str = "…", unit: str = "") -> Wording:
    """Return "lie in [low, high]", or with "…" "lie in low … high". The brackets may be "(]" too."""
    plain = "lie between ", low, " and ", high, unit
    if brackets == "…":
        return Wording(("lie in ", low, " … ", high, unit), plain)
    if brackets == "(]":
        plain = "be above ", low, " and at most ", high, unit
    return Wording((f"lie in {brackets[0]}", low, ", ", high, brackets[1], unit), plain)


def computed(value: Any, *formula: Part) -> Wording:
    """Return a number with the formula that gives it, for readers of code."""
    return Wording((*formula, f" = {value}"), str(value))


def listed(texts: Iterable[str]) -> str:
    """Join texts, but not more than six."""
    texts = list(texts)
    return ", ".join(texts if len(texts) <= 6 else [*texts[:6], "..."])


def short_repr(value: Any) -> str:
    """Return the repr of a value for an error message, on one line and cut to 200 characters."""
    try:
        return _shortened(repr(value))
    except RecursionError:  # nested too deeply
        return f"{type(value).__name__}(...)"


def plain(number: Any) -> Any:
    """Return a whole float as an int, and any other number as it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def unquoted(value: Any) -> str:
    """Return the same, but of a string the string itself."""
    return _shortened(value) if isinstance(value, str) else short_repr(value)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _as_json(value: Any) -> str:
    try:
        return _shortened(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):  # such as an array
        return short_repr(value)
