"""Activation checkpointing: blocks are computed again for their gradients, and their activations not kept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import checkpoint

from torch_bridge.distributed.distribution import classes_of

Model = TypeVar("Model", bound=nn.Module)
_checkpoint: Callable[..., Any] = cast("Any", checkpoint.checkpoint)


def checkpoint_activations(model: Model, blocks: type[nn.Module] | Sequence[type[nn.Module]]) -> Model:
    """Let each module of these classes keep only its inputs, and run again in the backward pass.

    With n blocks, each with a bytes of activations and i bytes of inputs, and a backward pass that needs
    one block at a time, one more forward pass reduces the memory of activations

        from n·a bytes to n·i + a

    Gradients and random numbers are the same bits as without. Source: Chen et al. 2016, Training Deep Nets
    with Sublinear Memory Cost (arXiv:1604.06174).

    The second pass is that of `torch.utils.checkpoint` with `use_reentrant=False`, under the autocast and
    the random state of the first. Only the `forward` of each of these modules changes: the names of
    parameters and states stay, copies and pickles of the model are checkpointed too, and a second call
    changes nothing. Without gradients, as in `evaluate`, nothing is kept and nothing runs twice.

    It composes with `torch.compile`, autocast, accumulation, and a carry that blocks take and return. It
    composes with `DistributedDataParallel` and `fully_shard`, before or after wrapping, for the same
    classes of blocks or others; a block that is sharded for itself is gathered once for both passes.

    It does not compose with

    - `cuda_graph=True`, since torch's checkpoint reads the random state;
    - dropout under `torch.compile(backend="eager")`, which is for debugging: the second pass draws other
      random numbers;
    - on CUDA the dropout of `nn.LSTM`, `nn.GRU` and `nn.RNN`, since cuDNN has a random state of its own.

    A block must compute the same twice. Its side effects, such as a list that it appends to, happen twice,
    and its inputs must not be changed in place before the backward pass.

    Args:
        model: The model; it is changed, and may be one of the blocks itself.
        blocks: A module class, such as a transformer's block, or a sequence of them. A block inside a block
            runs again inside the outer one's second pass.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module, or `blocks` is neither a module class nor a sequence of them.
        ValueError: There is no class, or one that no module of the model has; or a block has BatchNorm,
            another layer with running statistics, or spectral norm inside: its buffers would change twice.

    >>> import torch
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = checkpoint_activations(nn.TransformerEncoder(layer, 3), nn.TransformerEncoderLayer)
    >>> model(torch.ones(4, 5, 8)).sum().backward()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model = {model!r} must be a torch.nn.Module")
    classes = classes_of(model, blocks)
    if not classes:
        raise ValueError(f"blocks = {blocks!r} must have a class of modules")
    found = {name: module for name, module in _named_modules(model) if isinstance(module, classes)}
    for name, block in found.items():
        for called, reason in _changing_buffers(name, block):
            raise ValueError(
                f"{called} has {reason}, inside a block: its buffers would change in the first pass, and "
                "again in the second. Choose other blocks, or a layer that changes none"
            )
    for block in found.values():
        if not isinstance(block.forward, CheckpointedForward):
            block.forward = CheckpointedForward(block.forward)
    return model


def _named_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    return cast("Any", model).named_modules(prefix=prefix)


def _changing_buffers(name: str, block: nn.Module) -> Iterator[tuple[str, str]]:
    """The modules of a block whose buffers a forward pass changes: a name, and the reason."""
    for path, module in _named_modules(block, name):
        called = f"{path or 'the model'} ({type(module).__name__})"
        if getattr(module, "track_running_stats", False):
            yield called, "running statistics"
        hooks = cast("Any", module._forward_pre_hooks).values()
        if isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks):
            yield called, "spectral norm"


class CheckpointedForward:
    """Keeps only the inputs of a module's forward pass, and runs it again for its gradients.

    It is an attribute of the module, not a module around it. So names stay, and hooks, above all those of
    `fully_shard`, run once, outside of what runs twice. It calls a bound method, which a copy or a pickle
    of the module binds to itself.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.__wrapped__ = forward  # also what inspect.signature follows

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        # All by position: torch's checkpoint has keywords of its own, which may be names of the block's too.
        # And it searches positional arguments only for devices, and for inputs changed in place.
        values = *kwargs.values(), *args
        return _checkpoint(self._run, tuple(kwargs), *values, use_reentrant=False)

    def _run(self, names: tuple[str, ...], *values: Any) -> Any:
        count = len(names)
        return self.__wrapped__(*values[count:], **dict(zip(names, values[:count], strict=True)))


def is_checkpointed(model: nn.Module) -> bool:
    """Whether modules of the model run again for their gradients."""
    return any(isinstance(module.forward, CheckpointedForward) for module in model.modules())
