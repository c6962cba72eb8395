"""Activation checkpointing: what a block computes is computed again where gradients need it, not kept."""

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
    """Let each module of these classes keep its inputs alone for the backward pass, and run again there.

    With n blocks of a bytes of activations and i bytes of inputs, and a backward pass that needs one block
    at a time, what is kept goes, for one forward pass more,

        from n·a bytes to n·i + a

    Gradients and random numbers are the same bits as without. Source: Chen et al. 2016, Training Deep Nets
    with Sublinear Memory Cost (arXiv:1604.06174).

    The second pass is that of `torch.utils.checkpoint`, not reentrant, under the autocast and the random
    state of the first. Only `forward` of each of these modules changes: names of parameters and states
    stay, copies and pickles of the model keep it, a second call changes nothing. Where no gradient is
    asked for, as in `evaluate`, nothing is kept and nothing runs twice.

    It composes with `torch.compile`, autocast, a carry that blocks take and return, and accumulation. With
    `DistributedDataParallel` and `fully_shard` too, before or after wrapping, with the same classes as
    blocks or others; blocks that are sharded for themselves are gathered once for both passes. It does not
    compose with `cuda_graph=True`, since torch's checkpoint reads the random state; with dropout under
    `backend="eager"` of `torch.compile`, meant for debugging, where the second pass draws other random
    numbers; nor, on CUDA, with the dropout of `nn.LSTM`, `nn.GRU` and `nn.RNN`, whose random numbers cuDNN
    keeps to itself.

    A block must compute the same twice. What it changes besides, such as a list that it appends to, is
    changed twice, and its inputs must not be changed in place before the backward pass.

    Args:
        model: The model; it is changed, and may be one of the blocks itself.
        blocks: A module class, a transformer's block for instance, or several. A block inside a block runs
            again inside of it.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module, or `blocks` is something else than module classes.
        ValueError: No class, or one that the model has no module of; BatchNorm, or another layer with
            running statistics, or spectral norm, inside a block: their buffers would change twice.

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
        if not isinstance(block.forward, _Checkpointed):
            block.forward = _Checkpointed(block.forward)
    return model


def is_checkpointed(model: nn.Module) -> bool:
    """Whether blocks of the model run again for their gradients."""
    return any(isinstance(module.forward, _Checkpointed) for module in model.modules())


class _Checkpointed:
    """The `forward` of one module.

    Its own attribute of that module, not a module around it: names stay, and hooks, those of
    `fully_shard` above all, stay outside of what runs twice. What it calls is a bound method, which a copy
    or a pickle of the module binds anew.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.__wrapped__ = forward  # also what inspect.signature follows

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        # By place, since torch's own keywords may be names of the block's too, and since it looks for
        # devices, and for inputs changed in place, among these alone.
        values = *kwargs.values(), *args
        return _checkpoint(self._run, tuple(kwargs), *values, use_reentrant=False)

    def _run(self, names: tuple[str, ...], *values: Any) -> Any:
        count = len(names)
        return self.__wrapped__(*values[count:], **dict(zip(names, values[:count], strict=True)))


def _named_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    return cast("Any", model).named_modules(prefix=prefix)


def _changing_buffers(name: str, block: nn.Module) -> Iterator[tuple[str, str]]:
    """Each module inside a block whose buffers a forward pass changes, and what it has."""
    for path, module in _named_modules(block, name):
        called = f"{path or 'the model'} ({type(module).__name__})"
        if getattr(module, "track_running_stats", False):
            yield called, "running statistics"
        hooks = cast("Any", module._forward_pre_hooks).values()
        if isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks):
            yield called, "spectral norm"
