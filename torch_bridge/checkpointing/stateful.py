"""What torch calls stateful: an object that tells its state, and takes one back."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """A training step, a loader, a sampler, a log; a module, an optimizer, a scheduler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...
