"""A trial of one process: passes through a model wrapped for several, in which nothing is sent."""

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from torch_bridge.distributed.wrappers import Wrapper


@contextmanager
def alone(model: nn.Module) -> Generator[None]:
    """Passes through the model inside send nothing, and wait for nobody.

    A `DistributedDataParallel` runs the module that it holds. Under `fully_shard` a parameter is put
    together of as many copies of this process's part as there are processes, and the gradient of the part
    is this process's own: the buffers of torch's communication are there, and of the size that they have.
    The numbers are nobody's: put weights and states back afterwards. An error that breaks a pass off leaves
    the model as it was.
    """
    with ExitStack() as restored:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                _replace(restored, module, forward=_unwrapped(module))
                _give_twins(restored, module)
            elif isinstance(module, FSDPModule):
                for group in _groups(cast("Any", module)._get_fsdp_state()):
                    _keep_to_itself(restored, group)
        try:
            yield
        except BaseException:
            forget_pass(model)
            raise


def forget_pass(model: nn.Module) -> None:
    """Put a model under `fully_shard` back to where it was before a pass that an error has broken off.

    What `FSDPModule.reset_iter_state` does from torch 2.13 on, and gradients that were not reduced yet.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = cast("Any", module)._get_fsdp_state()
            if (
                state._is_root
            ):  # torch decides that in the first pass, before which there is nothing to forget
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
    """The groups of parameters that are sent together: one, until torch 2.13."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def _keep_to_itself(restored: ExitStack, group: Any) -> None:
    """Replace what a group of sharded parameters sends by."""
    _replace(
        restored,
        group,
        _all_gather_comm=_Copies(group._all_gather_comm),
        _reduce_scatter_comm=_OwnPart(group._reduce_scatter_comm),
    )
    if group._all_reduce_hook is not None:
        _replace(restored, group, _all_reduce_hook=_do_nothing)
    if group._is_hsdp:
        # As sharded along one dimension: torch's all-reduce along the other can't be replaced.
        whole, part = group.mesh_info, copy.copy(group.mesh_info)
        part.__class__ = next(kind for kind in type(part).__mro__ if kind.__name__ == "FSDPMeshInfo")
        restored.callback(_exchange, group, part, whole)
        _exchange(group, whole, part)


def _exchange(group: Any, old: Any, new: Any) -> None:
    """Where the one is still there: in its first pass torch decides which parameters to keep whole."""
    for name in ("mesh_info", "post_forward_mesh_info"):
        if getattr(group, name) is old:
            setattr(group, name, new)


def _do_nothing(_: Tensor) -> None: ...


class Trial:
    """A model's wrapper while its process is alone: accumulates as that does, and adds nothing up."""

    size = copies = 1
    may_send_fp16 = False

    def __init__(self, wrapper: Wrapper) -> None:
        self.module, self.check, self.micro_batch = wrapper.module, wrapper.check, wrapper.micro_batch

    def reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> None:
        """There is nothing to add."""

    def reset(self) -> None:
        """`alone` does that."""


class _Copies:
    """In place of an all-gather: this process's part for each."""

    def __init__(self, real: Any) -> None:
        self.allocate: Callable[..., Tensor] = real.allocate

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> None:
        for part in output_tensor.chunk(group.size()):
            if part.data_ptr() != input_tensor.data_ptr():
                part.copy_(input_tensor)


class _OwnPart:
    """In place of a reduce-scatter: this process's part of its own gradient."""

    def __init__(self, real: Any) -> None:
        self.allocate: Callable[..., Tensor] = real.allocate

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def _unwrapped(model: Any) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if model.device_ids:  # inputs may be anywhere then
            device = torch.device(model.device_type, model.device_ids[0])
            args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
        return model.module(*args, **kwargs)

    return forward


def _give_twins(restored: ExitStack, model: DistributedDataParallel) -> None:
    """Give the modules other leaves over the same memory.

    Of every backward pass that reaches the parameters which a `DistributedDataParallel` knows it counts
    what arrives there, and later waits for as much.
    """
    twins: dict[nn.Parameter, nn.Parameter] = {}
    for module in cast("nn.Module", model.module).modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.requires_grad:
                if parameter not in twins:
                    twins[parameter] = _twin(parameter)
                restored.callback(setattr, module, name, parameter)
                setattr(module, name, twins[parameter])


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """A leaf that hands its gradient over."""
    twin = nn.Parameter(parameter.detach())

    def hand_over(_: Tensor) -> None:
        gradient, twin.grad = twin.grad, None
        assert gradient is not None
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    twin.register_post_accumulate_grad_hook(hand_over)
    return twin


def _replace(restored: ExitStack, thing: Any, **values: Any) -> None:
    """Set attributes, and put those that were there back at the end."""
    own = cast("dict[str, Any]", vars(thing))
    for name, value in values.items():
        if name in own:
            restored.callback(setattr, thing, name, own[name])
        else:
            restored.callback(delattr, thing, name)
        setattr(thing, name, value)
