"""Tapes of operators, updates that CUDA graphs capture, and a guard against waiting."""

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_bridge import TrainStep
from torch_bridge.training.train_step.cuda_graphs import GraphedUpdate, Guards
from torch_bridge.training.train_step.status import Status

CPU = torch.device("cpu")
WARM_UPS = 3


class Tape(TorchDispatchMode):
    """Records operators with their arguments and results, as a graph would, to run them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, list[Any], pytree.TreeSpec, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outcome = func(*args, **kwargs)
        inputs, spec = pytree.tree_flatten((args, kwargs))
        self.operators.append((func, inputs, spec, pytree.tree_leaves(outcome)))
        return outcome

    def replay(self) -> None:
        """Run the operators on the contents of their inputs; write into the recorded results."""
        now: dict[int, tuple[Tensor, Tensor]] = {}

        def current(leaf: Any) -> Any:
            if id(leaf) in now:
                return now[id(leaf)][1]
            return leaf

        # The tape was recorded below autograd, the backward pass included.
        with torch._C._AutoDispatchBelowAutograd():
            for func, inputs, spec, outcome in self.operators:
                args, kwargs = pytree.tree_unflatten(map(current, inputs), spec)
                again = pytree.tree_leaves(func(*args, **kwargs))
                for old, new in zip(outcome, again, strict=True):
                    if isinstance(old, Tensor):
                        now[id(old)] = old, new
            for old, new in now.values():
                if old.is_contiguous() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def graphs_for(update: Callable[[Sequence[Any]], tuple[Any, ...]]) -> GraphedUpdate:
    """Return the graphed form of an update that does not depend on a model."""
    status = Status(is_distributed=False)
    return GraphedUpdate(update, status, Guards(nn.Identity(), []), CPU)


class Sums:
    """An update that adds up its batches and counts how often Python ran it."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.count = torch.zeros((), dtype=torch.int64)
        self.runs = 0
        self.graphs = graphs_for(self)

    def __call__(self, micro_batches: Sequence[Any]) -> tuple[Tensor, ...]:
        self.runs += 1
        for batch in micro_batches:
            self.total.add_(batch["x"].sum() * batch.get("times", 1))
        self.count.add_(1)
        return self.total * 1, self.count * 1


def graphs_of(step: TrainStep) -> GraphedUpdate:
    return cast("GraphedUpdate", step._graphs)


@contextmanager
def no_waiting() -> Generator[None]:
    """Make torch raise an error if anything waits for the device."""
    try:
        with warnings.catch_warnings():
            # Torch warns once per process.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
