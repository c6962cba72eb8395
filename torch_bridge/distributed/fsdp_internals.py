"""What is used of FSDP2 (`fully_shard`) beyond its public interface; a release of torch may change any of it.

torch keeps a state for each module under `fully_shard`. A state has groups of parameters: the parameters of
a group are gathered, and their gradients reduced, by one collective.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on this module itself."""
    # By its class's name: to import torch.distributed.fsdp takes most of a second.
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules of a model that `fully_shard` was called on."""
    return [module for module in model.modules() if is_sharded(module)]


def may_reduce_fp16(model: nn.Module) -> bool:
    """Whether gradients of a sharded model may be fp16 when they are reduced."""
    policies = [module._get_fsdp_state()._mp_policy for module in sharded_modules(model)]
    return any(torch.float16 in (policy.param_dtype, policy.reduce_dtype) for policy in policies)


def divide_factors(model: nn.Module) -> set[float | None] | None:
    """What torch divides the gradients of a sharded model by after it has summed them.

    In the set None stands for torch's own choice, the number of ranks. `set_gradient_divide_factor` sets
    another number. Where this release of torch does not tell, there is no set.
    """
    try:
        states = [module._get_fsdp_state() for module in sharded_modules(model)]
        return {group.gradient_divide_factor for state in states for group in _groups(state)}
    except AttributeError:
        return None


def forget_pass(model: nn.Module) -> None:
    """Restore a sharded model after an error inside a forward or backward pass.

    It does what `FSDPModule.reset_iter_state` does from torch 2.13 on, and drops gradients that are not
    reduced yet.
    """
    for module in sharded_modules(model):
        state = module._get_fsdp_state()
        # torch chooses the root in the first pass; before it there is nothing to forget.
        if state._is_root:
            _forget(state)


def _forget(root: Any) -> None:
    if hasattr(root, "_reset_iter_state"):
        root._reset_iter_state()
    else:
        root._device_handle.synchronize()
        root._state_ctx.iter_forward_root = None
        root._state_ctx.post_backward_final_callback_queued = False
        root._comm_ctx.all_gather_state = root._comm_ctx.reduce_scatter_state = None
        root._comm_ctx.post_forward_order.clear()
    idle = cast("Any", type(root._training_state)).IDLE
    for state in root._state_ctx.all_states:
        state._training_state = idle
        state._modules_to_run_forward.clear()
        for group in _groups(state):
            group._training_state = idle
            group._all_gather_result = group._post_reduce_event = group._all_reduce_state = None
            group._reshard_after_forward_event = group._partial_reduce_output = None
            group._post_forward_indices.clear()
            group._to_sharded()
            for parameter in group.fsdp_params:
                parameter.to_sharded()  # also where the error came halfway through a group
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None
                if parameter.unsharded_accumulated_grad is not None:  # from torch 2.15 on that is `grad`
                    parameter.unsharded_accumulated_grad = None


def _groups(state: Any) -> Sequence[Any]:
    """A state's groups of parameters; until torch 2.13 there is at most one."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []
