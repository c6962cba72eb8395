"""The `forward` of a module under activation checkpointing."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.utils import checkpoint

_checkpoint: Callable[..., Any] = cast("Any", checkpoint.checkpoint)


class CheckpointedForward:
    """Keeps only the inputs of a module's forward pass, and runs it again for its gradients.

    It is an attribute of the module, not a module around it. So names stay, and hooks, above all those of
    `fully_shard`, run once, outside of what runs twice. It calls a bound method, which a copy or a pickle
    of the module binds to itself.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.__wrapped__ = forward  # also what inspect.signature follows

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        # All by position: torch's checkpoint has keywords of its own, which may be names of the block's too.
        # And it searches positional arguments only for devices, and for inputs changed in place.
        values = *kwargs.values(), *args
        return _checkpoint(self._run, tuple(kwargs), *values, use_reentrant=False)

    def _run(self, names: tuple[str, ...], *values: Any) -> Any:
        count = len(names)
        return self.__wrapped__(*values[count:], **dict(zip(names, values[:count], strict=True)))


def is_checkpointed(model: nn.Module) -> bool:
    """Whether modules of the model run again for their gradients."""
    return any(isinstance(module.forward, CheckpointedForward) for module in model.modules())
