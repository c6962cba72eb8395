"""The interface between an update and the ranks that train its model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed import ReduceOp


class Parallelism:
    """The interface between an update and the model's parallelism.

    The class itself serves a plain module.
    """

    is_distributed = False
    """True if an update runs collectives, even in a group of one rank."""
    size = 1
    """The number of ranks that train the model."""
    rank = 0
    """The index of this rank among them."""
    replicas = 1
    """The number of ranks that hold the same gradient."""
    may_send_fp16 = False
    """True if a collective may receive gradients as fp16, in which large ones overflow."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """The module under whose names parameters and buffers are saved."""

    def check_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Reject optimized parameters whose gradients are not averaged over the ranks.

        Raises:
            ValueError: There is such a parameter.
        """

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager[Any] | None:
        """Return a context for a micro-batch's passes, which decides if gradients are averaged.

        None if it would do nothing.
        """
        return None

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """All-reduce the values in place: their sum over all ranks, or another operation."""
