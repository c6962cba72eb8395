"""The names of a module's state without those of its wrappers, so that it loads under any wrapper."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge.distributed.dtensors import shard_like

_COMPILED = "_orig_mod"  # where torch.compile keeps the module
_CHECKPOINTED = "_checkpoint_wrapped_module"  # torch leaves this name out of states by itself


def plain_name(module: nn.Module, name: str) -> str:
    """A name of the module's state, or of one of its parts, as it is without wrappers."""
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
    """The module's state under plain names."""
    return _renamed(module.state_dict(), lambda name: plain_name(module, name))


def to_plain_names(state: Mapping[str, Any], own: Collection[str]) -> Mapping[str, Any]:
    """A saved state under plain names, though it was saved under the names of wrappers.

    Args:
        state: The saved state.
        own: The plain names of the module that gets it. By them a wrapper's name is told from the same name
            in the user's module.
    """

    def uncompiled(name: str) -> str:
        return _without(name, _COMPILED)

    def unwrapped(name: str) -> str:
        return uncompiled(name).removeprefix("module.") if uncompiled(name) != "module" else ""

    def without_any(name: str) -> str:
        return _without(uncompiled(name), "module")

    if not all(isinstance(name, str) for name in state):
        return state  # no module's: whoever loads it refuses it
    names = set(own)
    for change in (str, uncompiled, unwrapped, without_any):
        if set(map(change, state)) == names:
            return _renamed(state, change)
    return _renamed(state, uncompiled)


def load_plain_state(module: nn.Module, state: Any) -> None:
    """Load a state, saved under plain names or under those of wrappers, into a module, wrapped or not."""
    own = module.state_dict()
    if isinstance(state, Mapping):
        plain = {plain_name(module, name): name for name in own}
        paths: dict[str, str] = {}
        for path in dict(cast("Any", module.named_modules(remove_duplicate=False))):
            paths[plain_name(module, path)] = path
        saved = to_plain_names(cast("Mapping[str, Any]", state), plain)
        state = _renamed(saved, lambda name: plain.get(name, paths.get(name, name)))
        placed = {
            name: shard_like(own[name], value)
            for name, value in state.items()
            if isinstance(value, Tensor) and isinstance(own.get(name), Tensor)
        }
        if any(placed[name] is not state[name] for name in placed):
            state = _renamed(state, str, placed)
    # Tensors that were made in inference mode may change in this mode alone.
    is_for_inference = any(each.is_inference() for each in (*module.parameters(), *module.buffers()))
    with torch.inference_mode() if is_for_inference else nullcontext():
        module.load_state_dict(state)


def _without(name: str, part: str) -> str:
    return ".".join(each for each in name.split(".") if each != part)


def _renamed(
    state: Mapping[str, Any], change: Callable[[str], str], values: Mapping[str, Any] | None = None
) -> Any:
    """The state under other names. One whose names and values stay is returned itself."""
    names = {name: change(name) for name in state}
    if values is None and all(name == other for name, other in names.items()):
        return state
    renamed: Any = OrderedDict(
        (names[name], (values or {}).get(name, value)) for name, value in state.items()
    )
    # Here torch keeps the versions of the modules, by their paths.
    if (versions := getattr(state, "_metadata", None)) is not None:
        renamed._metadata = OrderedDict((change(path), version) for path, version in versions.items())
    return renamed
