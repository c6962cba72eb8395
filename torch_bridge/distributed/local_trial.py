"""A trial on one rank: passes through a model that is wrapped for several, without a collective."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from torch_bridge.distributed import fsdp_internals
from torch_bridge.distributed.attributes import replaced
from torch_bridge.distributed.wrappers import Wrapper


@contextmanager
def without_collectives(model: nn.Module) -> Generator[None]:
    """Passes through the model inside run no collective, and wait for no other rank.

    A `DistributedDataParallel` runs the module that it wraps. Under `fully_shard` this rank's shard takes
    the place of the others': memory is used as in training. The numbers have no meaning, so restore weights
    and states afterwards. An error inside a pass leaves the wrappers as they were.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                changed = {"forward": _forward_of_wrapped(module), "_post_forward": _unchanged}
                stack.enter_context(replaced(module, **changed))
                _replace_leaves(stack, module)
        for module in fsdp_internals.sharded_modules(model):
            stack.enter_context(fsdp_internals.without_collectives(module))
        try:
            yield
        except BaseException:
            fsdp_internals.forget_pass(model)
            raise


class TrialWrapper:
    """The wrapper of a model inside `without_collectives`: accumulates as its own, and reduces nothing."""

    size = copies = 1
    may_send_fp16 = False

    def __init__(self, wrapper: Wrapper) -> None:
        self.module, self.check, self.micro_batch = wrapper.module, wrapper.check, wrapper.micro_batch
        self.has_means_alone: bool | None = None

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """There is one rank."""

    def start(self) -> None:
        """There is nothing to begin."""

    def reset(self) -> None:
        """`without_collectives` does that."""


def _forward_of_wrapped(model: Any) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if model.device_ids:  # then DistributedDataParallel moves its inputs
            device = torch.device(model.device_type, model.device_ids[0])
            args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
        return model._post_forward(model.module(*args, **kwargs))  # where an update notices the call

    return forward


def _unchanged(output: Any) -> Any:
    return output


def _replace_leaves(stack: ExitStack, model: DistributedDataParallel) -> None:
    """Give the modules other leaves over the same memory.

    `DistributedDataParallel` counts each gradient that reaches a parameter which it knows, and would wait
    for the rest of them later.
    """
    twins: dict[nn.Parameter, nn.Parameter] = {}
    for module in cast("nn.Module", model.module).modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.requires_grad:
                if parameter not in twins:
                    twins[parameter] = _twin(parameter)
                stack.callback(setattr, module, name, parameter)
                setattr(module, name, twins[parameter])


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """A leaf over the parameter's memory that adds its gradient to the parameter's."""
    twin = nn.Parameter(parameter.detach())

    def hand_over(_: Tensor) -> None:
        gradient, twin.grad = twin.grad, None
        assert gradient is not None
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    twin.register_post_accumulate_grad_hook(hand_over)
    return twin
