"""The formats of saved states, and how later versions may extend them.

A state is a dictionary that names its kind and the number of its format:

    {"kind": "metric_log", "format": 1, "rows": [...], "since_flush": 3}

A version reads the states of all earlier versions: an entry that was added after the first version
has a default, which is used if a state lacks it. An entry or a number that this version does not
know comes from a later one. A change that earlier versions must not read, such as a new meaning of
an entry, raises the number.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from plateau_jax.validation import checks

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
    """The values that absent entries mean: those added after the first version, and those that a
    library drops because they are None."""
    number: int = 1
    """The value of the entry "format"."""
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a user can do with the states of other kinds, by kind."""

    def is_of(self, state: Any) -> bool:
        """Return True for a state of this kind."""
        if not isinstance(state, Mapping):
            return False
        kind = cast("Mapping[Any, Any]", state).get("kind")
        return isinstance(kind, str) and kind == self.kind

    def describe_newer(self, name: str, state: Any) -> str:
        """Return an error message if a newer version saved this state, or "".

        Args:
            name: The name of the state.
            state: Any state.
        """
        if not self.is_of(state):
            return ""
        number = state.get("format")
        with suppress(TypeError):  # `read` rejects what is no integer
            number = checks.integer("format", number)
            if number > self.number:
                return f"{name} has format {number}, so it was {NEWER}"
        entries: Any = self.entries
        return describe_unknown(name, state, entries.__required_keys__ | entries.__optional_keys__)

    def read(self, name: str, state: Any) -> State:
        """Return a state with the defaults of absent entries. Checks no other values.

        Args:
            name: The name of the state, for messages.
            state: The state.

        Raises:
            KeyError: It lacks an entry.
            TypeError: It is of another kind.
            ValueError: A newer version saved it; or `format` is not a positive integer.
        """
        if not self.is_of(state):
            kind: Any = state["kind"]
            raise TypeError(self.advice.get(kind, f"its kind is {checks.short_repr(kind)}"))
        problem = self.describe_newer(name, state)
        if problem:
            raise ValueError(problem)
        complete = {**self.defaults, **state}
        required: Iterable[str] = cast("Any", self.entries).__required_keys__
        for entry in sorted(required):
            if entry not in complete:
                raise KeyError(entry)
        checks.at_least("format", complete["format"], 1)
        return cast("State", complete)


def describe_unknown(name: str, state: Mapping[str, Any], entries: Collection[str]) -> str:
    """Return an error message if a state has an entry that is not one of these, or ""."""
    for entry in state:
        if entry not in entries:
            return f"{name} has the entry {checks.short_repr(entry)}, so it was {NEWER}"
    return ""


def describe_error(error: Exception) -> str:
    """Return what an error from reading a state says about it: a KeyError says what is absent."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error)
