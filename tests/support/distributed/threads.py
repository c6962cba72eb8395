"""Threads that act as the ranks of a group, for code that averages no gradients."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp

from torch_bridge.training.distributed import processes
from torch_bridge.training.distributed.parallelism import Parallelism
from torch_bridge.training.train_step import step

_LIMIT = 30  # seconds that a rank waits for the others


class _Group:
    def __init__(self, size: int) -> None:
        self.size = size
        self.of_thread = threading.local()
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_LIMIT)

    def rank(self) -> int:
        return self.of_thread.rank

    def gather(self, value: Any, group: Any = None) -> list[Any]:
        self.values[self.rank()] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values

    def broadcast(self, objects: list[Any], source: int) -> None:
        objects[:] = self.gather(list(objects))[source]

    def call(self, rank: int, function: Callable[[], Any]) -> Any:
        self.of_thread.rank = rank
        try:
            return function()
        except BaseException:
            self.barrier.abort()  # otherwise the other ranks would wait for this one
            raise


def on_ranks(function: Callable[[], Any], size: int) -> list[Any]:
    """Call a function on each rank, and return the results in the order of ranks.

    The ranks of a `TrainStep` skip the same updates, but average no gradients.
    """
    group = _Group(size)
    with (
        patch.multiple(processes, gather=group.gather, rank=group.rank, world_size=lambda: size),
        patch.object(distributed, "broadcast_object_list", group.broadcast),
        patch.object(step, "parallelism_of", _Replica),
        ThreadPoolExecutor(size) as pool,
    ):
        ranks = [pool.submit(group.call, rank, function) for rank in range(size)]
        for rank in ranks:
            error = rank.exception()
            # The other ranks have a broken barrier after the error of one.
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [rank.result() for rank in ranks]


class _Replica(Parallelism):
    """A rank that holds all parameters, as under `DistributedDataParallel`."""

    is_distributed = True

    def __init__(self, module: nn.Module, *, every_micro_batch: bool = True) -> None:
        super().__init__(module)
        self.size = processes.world_size()
        self.replicas = processes.world_size()
        self.rank = processes.rank()

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        gathered = torch.stack(processes.gather(values.clone()))
        if operation == ReduceOp.SUM:
            values.copy_(gathered.sum(0))
        else:
            values.copy_(gathered.amax(0))
