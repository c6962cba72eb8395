"""Whether an optimizer had moved its parameters when an error broke its step off."""

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import SGD, Optimizer


def versions(optimizers: Sequence[Optimizer]) -> list[int]:
    """Torch's counts of changes to the first parameter of each optimizer that has a gradient, and its state.

    A parameter without one, which is frozen or was not used, stays where it is.
    """
    found: list[int] = []
    for optimizer in optimizers:
        # Written out, since each update pays for it.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found.append(parameter._version)
                    for value in optimizer.state.get(parameter, {}).values():
                        if isinstance(value, Tensor):
                            found.append(value._version)
                    break
            else:
                continue
            break
    return found


def shows_a_move(error: BaseException, optimizer: Optimizer) -> bool:
    """Whether an error's traceback says that the optimizer has moved, whatever torch counts.

    Torch does not count the changes that fused SGD makes. An error that comes out of its own `step`, or
    out of what torch wraps closely around it, is taken to have come after them.
    """
    step: Any = type(optimizer).step
    uncounted = type(optimizer) is SGD and any(group.get("fused") for group in optimizer.param_groups)
    inner = [function.__code__ for function in _wrapped_in(step)] if uncounted else []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is not optimizer:
            continue
        if frame.f_code is step.__code__:
            # Torch's wrapper: it calls the hooks before a step, the step, and the hooks after it.
            if "out" in frame.f_locals:
                return True
        elif frame.f_code in inner:
            return True
    return False


def _wrapped_in(function: Any) -> Iterator[Any]:
    """What a function wraps, what that wraps, and so on."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        yield function
