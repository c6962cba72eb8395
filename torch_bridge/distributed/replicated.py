"""`DistributedDataParallel` in an update: which gradients it averages, and when."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from torch_bridge.distributed.parallelism import Parallelism

_LEFT_OUT = (
    "DistributedDataParallel does not average the gradients of some of the optimizer's parameters: "
    "when it was built they were frozen, missing, or to be ignored. Wrap the model after you "
    "freeze or add parameters"
)

_NOT_AVERAGED = (
    "DistributedDataParallel has not averaged the gradients: some of its parameters got none in "
    "the micro-batch whose backward pass averages. Pass find_unused_parameters=True to it, or to "
    "distribute; or, if parameters were frozen after it was built, freeze them before"
)

_NOT_CALLED = (
    "DistributedDataParallel has not averaged the gradients: loss_fn did not call it in the "
    "micro-batch whose backward pass averages. In loss_fn call its argument, model(inputs); not "
    "model.module, no other module, and not under torch.no_grad() or no_sync()"
)


class Replicated(Parallelism):
    """A `DistributedDataParallel`: every rank holds all parameters and gets the same gradient.

    Torch does not complain, at least not in the same update, if the averaging did not take place:
    the replicas would drift apart. So each update checks that DDP was called and that its reducer
    has finished.
    """

    is_distributed = True

    def __init__(self, model: DistributedDataParallel, every_micro_batch: bool) -> None:
        super().__init__(cast("nn.Module", model.module))
        self._model = cast("Any", model)
        # With static_graph torch can't postpone the averaging of the first backward pass.
        self._every_micro_batch = every_micro_batch or model.static_graph
        self._group = cast("distributed.ProcessGroup", model.process_group)
        self.size = self._group.size()
        self.replicas = self.size
        self.rank = self._group.rank()
        # Only a communication hook knows what it compresses gradients to.
        self.may_send_fp16 = bool(self._model._comm_hooks)
        self._left_out: list[nn.Parameter] = []
        self._was_called = False
        self._torch_post_forward = self._model._post_forward
        # Not compiled, since torch.compile does not compile torch's own _post_forward either.
        self._noting_post_forward: Any = torch.compiler.disable(self._post_forward)

    def check_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        known_to_torch: list[nn.Parameter] = self._model._module_parameters
        trained = [parameter for parameter in known_to_torch if parameter.requires_grad]
        trained_ids = {id(parameter) for parameter in trained}
        self._left_out = [parameter for parameter in parameters if id(parameter) not in trained_ids]
        self._check_left_out()
        # Parameters that were frozen when DDP was built are known to it, but not averaged.
        num_averaged = self._model._get_ddp_logging_data()["num_parameter_tensors"]
        if len(trained) > num_averaged:
            raise ValueError(_LEFT_OUT)

    def _check_left_out(self) -> None:
        if any(parameter.requires_grad for parameter in self._left_out):
            raise ValueError(_LEFT_OUT)

    def micro_batch_context(self, is_last: bool) -> AbstractContextManager[Any]:
        self._check_left_out()
        if not self._model.require_backward_grad_sync:
            raise RuntimeError(
                "the step was called under no_sync(): leave it out, and pass all micro-batches of "
                "an update in one call; the step decides when gradients are averaged"
            )
        if is_last or self._every_micro_batch:
            return self._averaged()
        return self._model.no_sync()

    @contextmanager
    def _averaged(self) -> Generator[None]:
        self._was_called = False
        self._model._post_forward = self._noting_post_forward
        try:
            yield
        finally:
            del self._model._post_forward  # the method of the class shows again
        if not self._was_called:
            raise RuntimeError(_NOT_CALLED)
        # Torch itself would raise only in the next forward pass, one update later.
        try:
            self._model._check_reducer_finalized()
        except RuntimeError as error:
            raise RuntimeError(_NOT_AVERAGED) from error

    def _post_forward(self, output: Any) -> Any:
        # Torch's method makes the same test before it prepares for the backward pass.
        if torch.is_grad_enabled() and self._model.require_backward_grad_sync:
            self._was_called = True
        return self._torch_post_forward(output)

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        distributed.all_reduce(values, operation, group=self._group)
