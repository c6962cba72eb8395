"""The interface between an update and the ranks that train its model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed import ReduceOp


class Parallelism:
    """The interface between an update and the model's parallelism; the class itself is for a plain module."""

    is_distributed = False
    """Collectives run in an update, also in a group of one rank."""
    size = 1
    """The number of ranks that train the model."""
    replicas = 1
    """The number of ranks that hold the same gradient."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """The module under whose names parameters and buffers are saved."""

    @property
    def may_send_fp16(self) -> bool:
        """A collective may get gradients as fp16, where large ones overflow."""
        return False

    def check_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Refuse optimized parameters whose gradients are not averaged over the ranks; here all are.

        Raises:
            ValueError: There are some.
        """

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager[Any] | None:
        """The context of a micro-batch's forward and backward pass, which may average the gradients.

        None if it would do nothing.
        """
        return None

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """Replace the values by their sum over all ranks, or by another operation, in place."""
