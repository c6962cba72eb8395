"""Activation checkpointing: recompute activations in the backward pass instead of keeping them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import checkpoint

from plateau_jax.arguments import checks
from torch_bridge.training.distributed.distribute import classes_of

Model = TypeVar("Model", bound=nn.Module)
_checkpoint: Callable[..., Any] = cast("Any", checkpoint.checkpoint)


def checkpoint_activations(
    model: Model, blocks: type[nn.Module] | Sequence[type[nn.Module]]
) -> Model:
    """Recompute the activations of modules of these classes in the backward pass, to save memory.

    Each of these modules, a block, keeps only its inputs, and runs again in the backward pass. With
    n blocks, each with A bytes of activations and I bytes of inputs, the activations take

        n·I + A bytes instead of n·A

    if the backward pass needs one block at a time. Gradients and random numbers have the same bits
    as without it. Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost
    (arXiv:1604.06174).

    `torch.utils.checkpoint` with `use_reentrant=False` makes the second pass, under the autocast
    and the random state of the first. The names of parameters and states do not change. Copies and
    pickles of the model recompute too, and a second call changes nothing. Without gradients, as in
    `evaluate`, nothing is kept and nothing runs twice.

    It works with `torch.compile`, autocast, accumulation, and a carry that blocks take and return.
    It works with `DistributedDataParallel` and `fully_shard`: call it before or after wrapping. The
    blocks that `fully_shard` shards separately need not be these; a block that is both is gathered
    once for both passes.

    It does not work with

    - `cuda_graph=True`, because torch's checkpoint reads the random state;
    - dropout under `torch.compile(backend="eager")`, which is for debugging: the second pass draws
      different random numbers;
    - before torch 2.11, a block that is used more than once if `fully_shard` was called on modules
      inside it: torch raises an error in the backward pass;
    - on CUDA, the dropout of `nn.LSTM`, `nn.GRU` and `nn.RNN`, because cuDNN has a separate random
      state.

    A block must compute the same result twice. Its side effects, such as appending to a list,
    happen twice. Its inputs must not be changed in place before the backward pass.

    Args:
        model: The model, which is modified; it may be one of the blocks itself.
        blocks: A module class, such as a transformer's block, or a sequence of them. A block inside
            another one also runs again, in the second pass of the outer one.

    Returns:
        The model.

    Raises:
        TypeError: `blocks` is neither a class nor a sequence of classes.
        ValueError: `blocks` is empty, or has a class that no module of the model has; or a block
            contains BatchNorm, another layer with running statistics, or spectral norm, whose
            buffers would change twice.

    >>> import torch
    >>> from torch import nn
    >>> from torch_bridge import checkpoint_activations
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = checkpoint_activations(nn.TransformerEncoder(layer, 3), nn.TransformerEncoderLayer)
    >>> model(torch.ones(4, 5, 8)).sum().backward()
    """
    classes = classes_of(model, blocks)
    if not classes:
        raise ValueError(checks.must("blocks", blocks, "have a class of modules"))
    matching = [module for module in model.modules() if isinstance(module, classes)]
    _check_buffers(model, matching)
    for block in matching:
        if not isinstance(block.forward, CheckpointedForward):
            block.forward = CheckpointedForward(block.forward)
    return model


def _check_buffers(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Raise a ValueError if a forward pass changes a buffer in one of the model's blocks."""
    layers_in_blocks: set[nn.Module] = set()
    for block in blocks:
        layers_in_blocks.update(block.modules())
    for path, layer in cast("Any", model.named_modules()):
        if layer in layers_in_blocks and _changes_buffers(layer):
            raise ValueError(
                f"{path or 'the model'} ({type(layer).__name__}) has running statistics or "
                "spectral norm, inside a block: its buffers would change in the first pass, and "
                "again in the second. Choose other blocks, or a layer that doesn't change buffers"
            )


def _changes_buffers(layer: nn.Module) -> bool:
    """Return True if a forward pass of the layer changes its buffers."""
    if isinstance(layer, _SpectralNorm):
        return True
    hooks = cast("Any", layer._forward_pre_hooks).values()
    if any(isinstance(hook, SpectralNorm) for hook in hooks):
        return True
    return getattr(layer, "track_running_stats", False)


class CheckpointedForward:
    """A `forward` that keeps only its inputs, and runs again in the backward pass.

    It is an attribute of the module, not a module around it. So names stay, and hooks, above all
    those of `fully_shard`, run once, outside of the part that runs twice. It wraps a bound method,
    since copy and pickle bind that to the copied module.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.__wrapped__ = forward  # a name that inspect.signature follows

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        # All by position: torch's checkpoint takes keywords such as `debug` for itself, which a
        # block may have too. And it looks for devices, and for inputs changed in place, only among
        # positional arguments.
        names = tuple(kwargs)
        return _checkpoint(self._run, names, *kwargs.values(), *args, use_reentrant=False)

    def _run(self, names: tuple[str, ...], *values: Any) -> Any:
        count = len(names)
        args = values[count:]
        kwargs = dict(zip(names, values[:count], strict=True))
        return self.__wrapped__(*args, **kwargs)


def is_checkpointed(model: nn.Module) -> bool:
    """Return True if modules of the model run again in the backward pass."""
    return any(isinstance(module.forward, CheckpointedForward) for module in model.modules())
