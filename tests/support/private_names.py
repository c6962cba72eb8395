"""What torch's wrappers and DTensors have beyond their public interface; for a group of one process."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, _utils, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

DDP = (
    *("_module_parameters", "_get_ddp_logging_data", "_comm_hooks"),
    *("_check_reducer_finalized", "_post_forward"),
)

FSDP = ("_mp_policy", "gradient_divide_factor", "_fsdp_param_groups", "_fsdp_param_group")
"""Of FSDP2's state of a module; before torch 2.13 the last one in place of the one before."""


def check_ddp() -> None:
    """What DistributedDataParallel averages, and when.

    Run it in a process that ends without destroying its group: after a backward pass with a hook in Python,
    that may wait for a thread of gloo which waits for the GIL (torch 2.13).
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
    model(torch.ones(1, 2))  # a forward pass without a backward pass is not a broken one
    model._check_reducer_finalized()
    parameter: Any = module[1].bias
    model(torch.ones(1, 2))
    torch.autograd.backward(parameter.sum())  # one of its two parameters has no gradient yet
    with pytest.raises(RuntimeError, match="finished reduction"):
        model._check_reducer_finalized()
    model = DistributedDataParallel(nn.Linear(2, 1))
    with patch.object(model, "_post_forward", wraps=model._post_forward) as called:
        model.forward(torch.ones(1, 2))
    called.assert_called_once()
    model(torch.ones(1, 2)).sum().backward()
    model._check_reducer_finalized()


def check_fsdp() -> None:
    """A sharded module knows its precision, and what its gradients are divided by."""
    model: Any = nn.Linear(2, 2)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    state = model._get_fsdp_state()
    assert state._mp_policy.param_dtype is None
    assert state._mp_policy.reduce_dtype == torch.float16
    (group,) = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    assert group.gradient_divide_factor is None
    model.set_gradient_divide_factor(2.0)
    assert group.gradient_divide_factor == 2.0


class _Derived(DTensor): ...


def check_dtensors() -> None:
    """A DTensor's local part shares its memory: of tensors, parameters, gradients and derived classes."""
    mesh = init_device_mesh("cpu", (1,))
    tensor: Any = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    parameter: Any = nn.Parameter(tensor)
    (parameter * 2).sum().backward()
    make: Any = _Derived
    derived: Any = make(torch.ones(4), tensor._spec, requires_grad=False)
    for each in (tensor, parameter.data, parameter.grad, derived):
        assert isinstance(each, DTensor)
        assert each.device_mesh is mesh
        local: Any = each._local_tensor
        assert type(local) is torch.Tensor
        local.fill_(3)
        assert each.full_tensor().tolist() == [3] * 4
    assert type(parameter._local_tensor) is torch.Tensor
    assert parameter._local_tensor.data_ptr() == tensor._local_tensor.data_ptr()
    shape, offsets = _utils.compute_local_shape_and_global_offset((4,), mesh, [Shard(0)])
    assert (tuple(shape), tuple(offsets)) == ((4,), (0,))


def share_a_value() -> str:
    """Give this rank's number to the other one by way of the group's store; what that one gave."""
    store, rank = distributed.distributed_c10d._get_default_store(), distributed.get_rank()
    store.set(f"value of {rank}", str(rank))
    store.wait([f"value of {1 - rank}"])
    assert store.check([f"value of {rank}"])
    assert not store.check(["value of none"])
    return store.get(f"value of {1 - rank}").decode()
