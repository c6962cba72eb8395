"""The formats of saved states.

A state is a dictionary that names its kind and the number of its format:

    {"kind": "metric_log", "format": 1, "rows": [...], "since_flush": 3}

It has the entries of its kind, and no others. A state with a different number, without an entry or
with an unknown one was saved by a different version.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from plateau_jax.arguments import checks

State = TypeVar("State", bound=Mapping[str, object])

DIFFERENT_VERSION = "saved by a different version of plateau-jax"


@dataclass(frozen=True)
class Format(Generic[State]):
    """The format of one kind of saved state."""

    kind: str
    """The value of the entry "kind"."""
    entries: type[State]
    """A `TypedDict` of all entries and their types."""
    number: int = 1
    """The value of the entry "format"."""
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """Advice for states of other kinds, by kind."""

    def build(self, **entries: Any) -> dict[str, Any]:
        """Return a state with these entries."""
        return {"kind": self.kind, "format": self.number, **entries}

    def is_of(self, state: Any) -> bool:
        """Return True for a state of this kind."""
        return isinstance(state, Mapping) and cast("Any", state).get("kind") == self.kind

    def check_version(self, name: str, state: Mapping[str, Any]) -> None:
        """Raise a ValueError if the format or the entries are those of a different version."""
        number = state.get("format")
        if number != self.number:
            shown = checks.short_repr(number)
            raise ValueError(f"{name} has format {shown}, so it was {DIFFERENT_VERSION}")
        check_entries(name, state, cast("Any", self.entries).__required_keys__)

    def read(self, name: str, state: Any) -> State:
        """Return a state that has the entries of this kind. Checks no values.

        Raises:
            KeyError: It has no kind.
            TypeError: It is of a different kind.
            ValueError: A different version saved it, or it is a checkpoint with such a state.
        """
        if not self.is_of(state):
            check_is_not_around(name, state, self.is_of)
            kind: Any = state["kind"]
            raise TypeError(self.advice.get(kind, f"its kind is {checks.short_repr(kind)}"))
        self.check_version(name, state)
        return cast("State", state)


def check_is_not_around(
    name: str, state: Mapping[str, Any], is_wanted: Callable[[Any], bool]
) -> None:
    """Raise a ValueError if a state is a whole checkpoint, with the wanted state in an entry."""
    for key, entry in state.items():
        if is_wanted(entry):
            raise ValueError(f"{name} is a whole checkpoint: load the state in it, {name}[{key!r}]")


def check_entries(name: str, state: Mapping[str, Any], required: Collection[str]) -> None:
    """Raise a ValueError if a state, or a part of one, lacks an entry or has an unknown one."""
    for entry in sorted(required):
        if entry not in state:
            raise ValueError(
                f"{name} has no entry {checks.short_repr(entry)}, so it was {DIFFERENT_VERSION}"
            )
    for entry in state:
        if entry not in required:
            raise ValueError(
                f"{name} has the entry {checks.short_repr(entry)}, so it was {DIFFERENT_VERSION}, "
                "or the program added the entry"
            )


def describe_error(error: Exception) -> str:
    """Return what an error from reading a state says about it: a KeyError says what is absent."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error)


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Raise errors from a malformed state as a ValueError: it is not the state of `owner`."""
    if not isinstance(state_dict, Mapping):
        shown = checks.short_repr(state_dict)
        raise ValueError(f"state_dict = {shown} is not the state of {owner}")
    try:
        yield
    except ValueError:
        raise
    # A wrong type, such as a tensor in place of a number, can raise any error.
    except Exception as error:
        problem = describe_error(error)
        raise ValueError(f"state_dict is not the state of {owner}: {problem}") from None
