"""Torch's operators, recorded as they run."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorRecorder(TorchDispatchMode):
    """Records the name of every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})

    @property
    def reads(self) -> int:
        """The number of tensor values that the host read."""
        return sum("_local_scalar_dense" in name for name in self.names)


class Tape(TorchDispatchMode):
    """Records operators with their arguments and results, as a graph would, to run them again."""

    def __init__(self) -> None:
        super().__init__()
        self._tape: list[tuple[Any, list[Any], pytree.TreeSpec, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        self._tape.append((func, *pytree.tree_flatten((args, kwargs)), pytree.tree_leaves(outcome)))
        return outcome

    def replay(self) -> None:
        """Run the operators on the current contents of their inputs, and write into the recorded results."""
        now: dict[int, tuple[Tensor, Tensor]] = {}

        def current(leaf: Any) -> Any:
            return now[id(leaf)][1] if id(leaf) in now else leaf

        # The tape was recorded below autograd, the backward pass included.
        with torch._C._AutoDispatchBelowAutograd():
            for func, inputs, spec, outcome in self._tape:
                args, kwargs = pytree.tree_unflatten(map(current, inputs), spec)
                again = pytree.tree_leaves(func(*args, **kwargs))
                for old, new in zip(outcome, again, strict=True):
                    if isinstance(old, Tensor):
                        now[id(old)] = old, new
            for old, new in now.values():
                if old.is_contiguous() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
