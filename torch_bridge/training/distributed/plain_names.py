"""Names in a module's state without the parts of wrappers, so that it loads under any wrapper."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge.training.distributed.dtensors import mesh_of, shard_like

# Three wrappers add a part to names: torch.compile "_orig_mod", DistributedDataParallel and
# DataParallel "module". Torch's own wrapper for activation checkpointing adds one too, but leaves
# it out of states.
_COMPILED = "_orig_mod"
_CHECKPOINTED = "_checkpoint_wrapped_module"
_DATA_PARALLEL = (DistributedDataParallel, DataParallel)


def plain_name(module: nn.Module, name: str) -> str:
    """Return a name in the module's state, or a submodule's path, without the parts of wrappers.

    For a `DistributedDataParallel` around a compiled module with a submodule named "module":

        module._orig_mod.module.weight  →  module.weight
    """
    # Walk down the modules: a part "module" is dropped if a wrapper is there, but kept if the user
    # chose it.
    if not name:
        return ""
    kept: list[str] = []
    current: nn.Module | None = module
    for part in name.split("."):
        if part != _CHECKPOINTED:
            current = _inside_checkpoint_wrappers(current)
        is_of_wrapper = part == "module" and isinstance(current, _DATA_PARALLEL)
        if not is_of_wrapper and part != _COMPILED:
            kept.append(part)
        if current is not None:
            current = current._modules.get(part)
    return ".".join(kept)


def _inside_checkpoint_wrappers(module: nn.Module | None) -> nn.Module | None:
    while module is not None and _CHECKPOINTED in module._modules:
        module = module._modules[_CHECKPOINTED]
    return module


def plain_state(module: nn.Module) -> dict[str, Any]:
    """Return the module's state under plain names."""
    return _renamed(module.state_dict(), lambda name: plain_name(module, name))


def names_of_parameters(
    module: nn.Module, groups: Iterable[Iterable[nn.Parameter]]
) -> list[list[str]]:
    """Return the plain names of each group's parameters, "" for one that is not the module's.

    A tied parameter gets the first of its names in alphabetical order.
    """
    names: dict[int, str] = {}
    # Not `module.named_parameters`, which a user's class may replace.
    for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
        plain = _without(plain_name(module, name), _CHECKPOINTED)
        earlier = names.get(id(parameter), plain)
        names[id(parameter)] = min(plain, earlier)

    names_by_group: list[list[str]] = []
    for group in groups:
        names_of_group = [names.get(id(parameter), "") for parameter in group]
        names_by_group.append(names_of_group)
    return names_by_group


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
    if state.keys() <= set(plain_names):
        return state
    if not all(isinstance(name, str) for name in state):
        return state  # the load rejects it

    plain_by_short_name: dict[str, str] = {}
    for name in plain_names:
        plain_by_short_name[without_wrappers(name)] = name

    def to_plain_name(name: str) -> str:
        short_name = without_wrappers(name)
        return plain_by_short_name.get(short_name, short_name)

    renamed = _renamed(state, to_plain_name)
    # If a user's module has both "weight" and "module.weight", they have the same short name: the
    # load then rejects the state.
    if len(renamed) < len(state):
        return state
    return renamed


def load_plain_state(module: nn.Module, state: Any) -> None:
    """Load a state, saved under plain names or under those of wrappers, into any module."""
    if isinstance(state, Mapping):
        state = _to_state_of(module, cast("Mapping[str, Any]", state))
    # Tensors that were created in inference mode can be changed only in this mode.
    tensors = (*module.parameters(), *module.buffers())
    context: AbstractContextManager[Any] = nullcontext()
    if any(tensor.is_inference() for tensor in tensors):
        context = torch.inference_mode()
    with context:
        module.load_state_dict(state)


def _to_state_of(module: nn.Module, state: Mapping[str, Any]) -> Any:
    """Return a saved state under the names of a module, and sharded like the module."""
    current = module.state_dict()
    names: dict[str, str] = {}  # by plain name
    for path, _ in cast("Any", module.named_modules(remove_duplicate=False)):
        names[plain_name(module, path)] = path
    plain_names: list[str] = []
    for name in current:
        plain = plain_name(module, name)
        names[plain] = name
        plain_names.append(plain)

    saved = to_plain_names(state, plain_names)
    renamed = _renamed(saved, lambda name: names.get(name, name))
    sharded: dict[str, Tensor] = {}
    for name, value in renamed.items():
        if isinstance(value, Tensor) and name in current and mesh_of(current[name]) is not None:
            sharded[name] = shard_like(current[name], value)
    if sharded:
        renamed = copy(renamed)  # with the attribute that `_renamed` keeps
        renamed.update(sharded)
    return renamed


def _without(name: str, part: str) -> str:
    kept = [piece for piece in name.split(".") if piece != part]
    return ".".join(kept)


def _renamed(state: Mapping[str, Any], change: Callable[[str], str]) -> Any:
    """Return the state under changed names, or the state itself if no name changes."""
    renamed = cast("Any", OrderedDict())
    for name, value in state.items():
        renamed[change(name)] = value
    if list(renamed) == list(state):
        return state
    # In this attribute torch keeps the versions of the modules, by their paths.
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        renamed._metadata = OrderedDict()
        for path, version in versions.items():
            renamed._metadata[change(path)] = version
    return renamed
