"""The formats of saved states, and how later versions may extend them.

A state is a dictionary that names its kind and the number of its format:

    {"kind": "metric_log", "format": 1, "rows": [...], "since_flush": 3}

A version reads the states of all earlier versions: an entry that was added after the first version
has a default, which is used if a state lacks it. An entry is written only if it differs from its
default, so earlier versions can read the states of runs without new features. They reject unknown
entries and higher numbers. A change that earlier versions must not read, such as a new meaning of
an entry, raises the number.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar, cast

from plateau_jax.arguments import checks

State = TypeVar("State", bound=Mapping[str, object])

NEWER = "saved by a newer version: update plateau-jax"


@dataclass(frozen=True)
class Format(Generic[State]):
    """The format of one kind of saved state."""

    kind: str
    """The value of the entry "kind"."""
    entries: type[State]
    """A `TypedDict` of all entries and their types."""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values that absent entries mean."""
    number: int = 1
    """The value of the entry "format"."""
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a user can do with the states of other kinds, by kind."""

    def write(self, **entries: Any) -> dict[str, Any]:
        """Return a state with these entries, without those equal to their defaults."""
        written = without_defaults(entries, self.defaults)
        return {"kind": self.kind, "format": self.number, **written}

    def is_of(self, state: Any) -> bool:
        """Return True for a state of this kind."""
        if not isinstance(state, Mapping):
            return False
        kind = cast("Mapping[Any, Any]", state).get("kind")
        return isinstance(kind, str) and kind == self.kind

    def check_not_newer(self, name: str, state: Mapping[str, Any]) -> None:
        """Raise a ValueError if a newer version may have saved a state of this kind.

        Args:
            name: The name of the state, for messages.
            state: The state.
        """
        self._check_number(name, state)
        entries: Any = self.entries
        check_known(name, state, entries.__required_keys__ | entries.__optional_keys__)

    def _check_number(self, name: str, state: Mapping[str, Any]) -> None:
        number = state.get("format")
        with suppress(TypeError):  # `read` rejects what is not an integer
            number = checks.integer("format", number)
            if number > self.number:
                raise ValueError(f"{name} has format {number}, so it was {NEWER}")

    def read(self, name: str, state: Any) -> State:
        """Return a state with the defaults of absent entries. Checks no other values.

        Args:
            name: The name of the state, for messages.
            state: The state.

        Raises:
            KeyError: It lacks an entry.
            TypeError: It is of another kind.
            ValueError: A newer version may have saved it; or `format` is not a positive integer.
        """
        if not self.is_of(state):
            kind: Any = state["kind"]
            raise TypeError(self.advice.get(kind, f"its kind is {checks.short_repr(kind)}"))
        self._check_number(name, state)
        # First what it lacks, which is damage: an entry that was renamed is also unknown.
        required: Any = cast("Any", self.entries).__required_keys__ - self.defaults.keys()
        for entry in sorted(required):
            if entry not in state:
                raise KeyError(entry)
        self.check_not_newer(name, state)
        checks.at_least("format", state["format"], 1)
        return cast("State", {**self.defaults, **state})


def without_defaults(entries: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that differ from their default, or have none."""
    written: dict[str, Any] = {}
    for name, value in entries.items():
        if name not in defaults or value != defaults[name]:
            written[name] = value
    return written


def added_later(default: Any) -> Any:
    """Return a field of a dataclass, an argument that the first version did not have.

    `to_dict` writes all arguments of the first version, so that a description is complete, and
    this one only if it differs from its default.
    """
    return field(default=default, metadata={"added_later": True})


def later_defaults(dataclass: Any) -> dict[str, Any]:
    """Return the arguments that were added after the first version, with their defaults."""
    later = [field for field in fields(dataclass) if "added_later" in field.metadata]
    return {field.name: field.default for field in later}


def written_arguments(dataclass: Any) -> dict[str, Any]:
    """Return the arguments that `to_dict` writes."""
    arguments = {field.name: getattr(dataclass, field.name) for field in fields(dataclass)}
    return without_defaults(arguments, later_defaults(dataclass))


def check_known(name: str, state: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise a ValueError if a state, or a part of one, has an entry that is not known."""
    for entry in state:
        if entry not in known:
            raise ValueError(
                f"{name} has the entry {checks.short_repr(entry)}, which this version does not "
                f"know. Either it was {NEWER}; or the program added the entry"
            )


def is_of_newer_version(error: Exception) -> bool:
    """Return True for an error from reading what a newer version may have saved."""
    return NEWER in str(error)


def describe_error(error: Exception) -> str:
    """Return what an error from reading a state says about it: a KeyError says what is absent."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error)
