"""Attributes that are replaced for a while."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast


@contextmanager
def replaced(thing: Any, **values: Any) -> Generator[None]:
    """Set these attributes of an object inside, and restore it afterwards.

    An attribute that the object had from its class alone is deleted again.
    """
    own = cast("dict[str, Any]", vars(thing))
    before = {name: own[name] for name in values if name in own}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(thing, name, before[name])
            else:
                delattr(thing, name)
