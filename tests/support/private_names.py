"""What torch's wrappers have that it does not promise, looked at in a process that is a group of one."""

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def look_at_ddp() -> None:
    """What it averages, and that it can forget a backward pass that was broken off.

    In a process that ends without the group's own end: after a backward pass with a hook in Python that one
    may wait for a thread of gloo which waits for the GIL (torch 2.13).
    """
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    model: Any = DistributedDataParallel(module)
    assert list(map(id, model._module_parameters)) == list(map(id, module.parameters()))
    assert model._get_ddp_logging_data()["num_parameter_tensors"] == 2
    assert model.require_backward_grad_sync
    with model.no_sync():
        assert not model.require_backward_grad_sync
    assert not model._comm_hooks
    model.register_comm_hook(None, fp16_compress_hook)
    assert model._comm_hooks
    model(torch.ones(1, 2))  # a forward pass that no backward pass follows is none that was broken off
    model._check_reducer_finalized()
    parameter: Any = module[1].bias
    model(torch.ones(1, 2))
    torch.autograd.backward(parameter.sum())  # of its two parameters one has no gradient yet
    with pytest.raises(RuntimeError, match="finished reduction"):
        model._check_reducer_finalized()
    model.reducer._reset_state()
    model(torch.ones(1, 2)).sum().backward()
    model._check_reducer_finalized()


def missing_under_fsdp() -> list[str]:
    """What a module under `fully_shard` has no more of all that the product uses without torch's promise."""
    model = nn.Linear(2, 2)
    fully_shard(model)
    model(torch.ones(1, 2)).sum().backward()
    state = cast("Any", model)._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    used = {
        state: "_is_root _training_state _modules_to_run_forward _state_ctx",
        state._state_ctx: "all_states",
        groups[0]: "_all_gather_comm _reduce_scatter_comm _all_reduce_hook _is_hsdp mesh_info fsdp_params "
        "post_forward_mesh_info _training_state _all_gather_result _post_reduce_event _all_reduce_state "
        "_reshard_after_forward_event _partial_reduce_output _post_forward_indices _to_sharded",
        groups[0].fsdp_params[0]: "to_sharded _unsharded_param unsharded_accumulated_grad",
    }
    if not hasattr(state, "_reset_iter_state"):
        used[state] += " _device_handle _comm_ctx"
        used[state._state_ctx] += " iter_forward_root post_backward_final_callback_queued"
        used[state._comm_ctx] = "all_gather_state reduce_scatter_state post_forward_order"
    kinds = [kind.__name__ for kind in type(groups[0].mesh_info).__mro__]
    missing = [] if "FSDPMeshInfo" in kinds else ["FSDPMeshInfo"]
    return missing + [
        name for thing, names in used.items() for name in names.split() if not hasattr(thing, name)
    ]
