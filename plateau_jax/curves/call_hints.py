"""Messages for calls of a curve's class whose arguments do not fit its fields."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from plateau_jax.validation.checks import did_you_mean, is_ordered, short_repr
from plateau_jax.validation.messages import Name

_Class = TypeVar("_Class", bound=type[Any])


def explain_calls(cls: _Class) -> _Class:
    """Let the `__init__` of a class name the right argument if the call does not fit."""
    init: Callable[..., None] = cls.__init__

    # With `wraps`, `help` and `inspect.signature` show the arguments.
    @wraps(init)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        try:
            init(self, *args, **named)
        except TypeError:
            # The error may come from a check of a value instead, whose message stands.
            if reason := _reason(cls, init, args, named):
                raise TypeError(reason) from None
            raise

    cls.__init__ = __init__
    return cls


def _reason(
    cls: type[Any], init: Callable[..., None], args: tuple[Any, ...], named: Mapping[str, Any]
) -> str:
    """Return what is wrong with a call, and what to write instead; "" if it fits or nothing helps."""
    signature = inspect.signature(init)
    try:
        signature.bind(None, *args, **named)
    except TypeError:
        pass
    else:
        return ""
    _, *parameters = signature.parameters.values()
    names = [parameter.name for parameter in parameters]
    for name in named:
        if name not in names:
            advice = did_you_mean(name, names, Name) or f": its arguments are {', '.join(names)}"
            return f"{cls.__name__} has no argument {name}{advice}"
    later = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    positional = [name for name in names if name not in later]
    extra = args[len(positional) :]
    if extra and all(map(is_ordered, args)):  # as in StagedCurve((100, 1.0), (900,))
        return f"{positional[0]} must be one list: write {cls.__name__}({short_repr(list(args))})"
    if extra and len(extra) <= len(later):
        pairs = zip(later, extra, strict=False)
        separator = ", "
        if len(extra) == 1 and len(later) == 2:  # either may be meant
            pairs, separator = ((name, extra[0]) for name in later), " or "
        written = separator.join(f"{name}={short_repr(value)}" for name, value in pairs)
        return f"{cls.__name__} takes the arguments after {positional[-1]} by name: write {written}"
    return ""
