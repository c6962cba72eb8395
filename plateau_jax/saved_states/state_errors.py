"""Errors from malformed states."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from plateau_jax.arguments import checks
from plateau_jax.saved_states.formats import describe_error


@contextmanager
def reading_state_of(owner: str, state_dict: Any) -> Generator[None]:
    """Raise errors from a malformed state as a ValueError: it is not the state of `owner`."""
    if isinstance(state_dict, str | bytes | PathLike):
        raise ValueError(
            f"state_dict = {checks.short_repr(state_dict)} is a path, not a state: load the file "
            "first, load_state_dict(torch.load(path, weights_only=True)). "
            "Checkpoints(directory).load(...) loads what Checkpoints saved"
        )
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
