"""Checks of private names of torch's wrappers and DTensors, run in a process group of one rank."""

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
"""Attributes of FSDP2's state of a module. Before torch 2.13, `_fsdp_param_groups` is `_fsdp_param_group`."""


def check_ddp() -> None:
    """Check what DistributedDataParallel averages, and when.

    The process must end without destroying its group: after a backward pass with a Python hook, destroying
    it may wait for a gloo thread that waits for the GIL (torch 2.13).
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
    """Check that a sharded module has its precision and its gradient divisor."""
    model: Any = nn.Linear(2, 2)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    state = model._get_fsdp_state()
    assert state._mp_policy.param_dtype is None
    assert state._mp_policy.reduce_dtype == torch.float16
    (group,) = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    assert group.gradient_divide_factor is None
    model.set_gradient_divide_factor(2.0)
    assert group.gradient_divide_factor == 2.0


class _Subclass(DTensor): ...


def check_dtensors() -> None:
    """Check that the local part of a DTensor, parameter, gradient or subclass shares its memory."""
    mesh = init_device_mesh("cpu", (1,))
    tensor: Any = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    parameter: Any = nn.Parameter(tensor)
    (parameter * 2).sum().backward()
    make: Any = _Subclass
    subclass: Any = make(torch.ones(4), tensor._spec, requires_grad=False)
    for dtensor in (tensor, parameter.data, parameter.grad, subclass):
        assert isinstance(dtensor, DTensor)
        assert dtensor.device_mesh is mesh
        local: Any = dtensor._local_tensor
        assert type(local) is torch.Tensor
        local.fill_(3)
        assert dtensor.full_tensor().tolist() == [3] * 4
    assert type(parameter._local_tensor) is torch.Tensor
    assert parameter._local_tensor.data_ptr() == tensor._local_tensor.data_ptr()
    shape, offsets = _utils.compute_local_shape_and_global_offset((4,), mesh, [Shard(0)])
    assert (tuple(shape), tuple(offsets)) == ((4,), (0,))


def share_a_value() -> str:
    """Exchange rank numbers through the group's store; return the other rank's."""
    store, rank = distributed.distributed_c10d._get_default_store(), distributed.get_rank()
    store.set(f"value of {rank}", str(rank))
    store.wait([f"value of {1 - rank}"])
    assert store.check([f"value of {rank}"])
    assert not store.check(["value of none"])
    return store.get(f"value of {1 - rank}").decode()
