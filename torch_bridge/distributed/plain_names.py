"""Names in a module's state without the parts that wrappers add, so that it loads under any wrapper."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge.distributed.dtensors import shard_like

# Three wrappers add a part to names: torch.compile "_orig_mod", DistributedDataParallel and DataParallel
# "module". Torch's own wrapper for activation checkpointing adds one too, but leaves it out of states.
_COMPILED = "_orig_mod"
_CHECKPOINTED = "_checkpoint_wrapped_module"


def plain_name(module: nn.Module, name: str) -> str:
    """Return a name in the module's state, or of one of its submodules, without the parts of wrappers."""
    # Walk down the modules: a part "module" is dropped if a wrapper is there, but kept if the user chose it.
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


def names_of_parameters(module: nn.Module, groups: Iterable[Iterable[nn.Parameter]]) -> list[list[str]]:
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
        plain_names: The plain names of the module that loads it, which show if "module" in a saved name
            comes from a wrapper or from the user's module.
    """

    def uncompiled(name: str) -> str:
        return _without(name, _COMPILED)

    def unwrapped(name: str) -> str:
        return uncompiled(name).removeprefix("module.") if uncompiled(name) != "module" else ""

    def without_any(name: str) -> str:
        return _without(uncompiled(name), "module")

    if not all(isinstance(name, str) for name in state):
        return state  # not a module's state: the load rejects it
    # The saved wrappers are unknown. So take the first of these changes that gives the module's names; "str"
    # changes nothing.
    expected = set(plain_names)
    for change in (str, uncompiled, unwrapped, without_any):
        if set(map(change, state)) == expected:
            return _renamed(state, change)
    return _renamed(state, uncompiled)


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
        placed = {
            name: shard_like(current[name], value)
            for name, value in state.items()
            if isinstance(value, Tensor) and isinstance(current.get(name), Tensor)
        }
        if any(placed[name] is not state[name] for name in placed):
            state = _renamed(state, str, placed)
    # Tensors that were created in inference mode can be changed only in this mode.
    tensors = (*module.parameters(), *module.buffers())
    is_for_inference = any(tensor.is_inference() for tensor in tensors)
    with torch.inference_mode() if is_for_inference else nullcontext():
        module.load_state_dict(state)


def _without(name: str, part: str) -> str:
    return ".".join(piece for piece in name.split(".") if piece != part)


def _renamed(
    state: Mapping[str, Any], change: Callable[[str], str], values: Mapping[str, Any] | None = None
) -> Any:
    """Return the state under changed names, or the state itself if no name and no value changes."""
    names = {name: change(name) for name in state}
    if values is None and all(name == new_name for name, new_name in names.items()):
        return state
    renamed: Any = OrderedDict(
        (names[name], (values or {}).get(name, value)) for name, value in state.items()
    )
    # In this attribute torch keeps the versions of the modules, by their paths.
    if (versions := getattr(state, "_metadata", None)) is not None:
        renamed._metadata = OrderedDict((change(path), version) for path, version in versions.items())
    return renamed
