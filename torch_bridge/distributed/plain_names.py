"""Names in a module's state without the parts that wrappers add, so that it loads under any wrapper."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge.distributed.dtensors import mesh_of, shard_like

# Three wrappers add a part to names: torch.compile "_orig_mod", DistributedDataParallel and
# DataParallel "module". Torch's own wrapper for activation checkpointing adds one too, but leaves
# it out of states.
_COMPILED = "_orig_mod"
_CHECKPOINTED = "_checkpoint_wrapped_module"


def plain_name(module: nn.Module, name: str) -> str:
    """Return a name in the module's state, or of one of its submodules, without the parts of wrappers."""
    # Walk down the modules: a part "module" is dropped if a wrapper is there, but kept if the user
    # chose it.
    kept: list[str] = []
    inner: nn.Module | None = module
    for part in name.split(".") if name else []:
        while inner is not None and part != _CHECKPOINTED and _CHECKPOINTED in inner._modules:
            inner = inner._modules[_CHECKPOINTED]
        is_wrapped = part == "module" and isinstance(inner, DistributedDataParallel | DataParallel)
        if not is_wrapped and part != _COMPILED:
            kept.append(part)
        inner = None if inner is None else inner._modules.get(part)
    return ".".join(kept)


def plain_state(module: nn.Module) -> dict[str, Any]:
    """Return the module's state under plain names."""
    return _renamed(module.state_dict(), lambda name: plain_name(module, name))


def names_of_parameters(
    module: nn.Module, groups: Iterable[Iterable[nn.Parameter]]
) -> list[list[str]]:
    """Return the plain names of each group's parameters, "" for one that is not the module's.

    Of a tied parameter's names, the first in alphabetical order.
    """
    names: dict[int, str] = {}
    # Not `module.named_parameters`, which a user's class may replace.
    for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
        plain = _without(plain_name(module, name), _CHECKPOINTED)
        names[id(parameter)] = min(plain, names.get(id(parameter), plain))
    return [[names.get(id(parameter), "") for parameter in group] for group in groups]


def without_wrappers(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add, such as `module`.

    A submodule that the user gave such a name is left out too.
    """
    for part in (_COMPILED, _CHECKPOINTED, "module"):
        name = _without(name, part)
    return name


def to_plain_names(state: Mapping[str, Any], plain_names: Collection[str]) -> Mapping[str, Any]:
    """Return a state, saved under plain names or under those of wrappers, under plain names.

    Args:
        state: The saved state.
        plain_names: The plain names of the module that loads it, which show if "module" in a saved
            name comes from a wrapper or from the user's module.
    """
    if state.keys() <= set(plain_names) or not all(isinstance(name, str) for name in state):
        return state  # if its keys are not names, the load rejects it
    plain = {without_wrappers(name): name for name in plain_names}
    renamed = _renamed(state, lambda name: plain.get(short := without_wrappers(name), short))
    # A module with both "weight" and "module.weight" has no names without wrappers: the load
    # rejects these.
    return renamed if len(renamed) == len(state) else state


def load_plain_state(module: nn.Module, state: Any) -> None:
    """Load a state, saved under plain names or under those of wrappers, into a module, wrapped or not."""
    current = module.state_dict()
    if isinstance(state, Mapping):
        plain = {plain_name(module, name): name for name in current}
        paths: dict[str, str] = {}
        for path in dict(cast("Any", module.named_modules(remove_duplicate=False))):
            paths[plain_name(module, path)] = path
        saved = to_plain_names(cast("Mapping[str, Any]", state), plain)
        state = _renamed(saved, lambda name: plain.get(name, paths.get(name, name)))
        sharded = {
            name: shard_like(current[name], value)
            for name, value in state.items()
            if isinstance(value, Tensor) and name in current and mesh_of(current[name])
        }
        if sharded:
            state = copy(state)  # with the attribute that `_renamed` keeps
            state.update(sharded)
    # Tensors that were created in inference mode can be changed only in this mode.
    tensors = (*module.parameters(), *module.buffers())
    is_for_inference = any(tensor.is_inference() for tensor in tensors)
    with torch.inference_mode() if is_for_inference else nullcontext():
        module.load_state_dict(state)


def _without(name: str, part: str) -> str:
    return ".".join(piece for piece in name.split(".") if piece != part)


def _renamed(state: Mapping[str, Any], change: Callable[[str], str]) -> Any:
    """Return the state under changed names, or the state itself if no name changes."""
    renamed: Any = OrderedDict((change(name), value) for name, value in state.items())
    if list(renamed) == list(state):
        return state
    # In this attribute torch keeps the versions of the modules, by their paths.
    if (versions := getattr(state, "_metadata", None)) is not None:
        renamed._metadata = OrderedDict(
            (change(path), version) for path, version in versions.items()
        )
    return renamed
