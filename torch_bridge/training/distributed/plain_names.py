"""Names in a module's state without the parts of wrappers, so that it loads under any wrapper."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torch_bridge.training.distributed.dtensors import shard_like

# Three wrappers add a part to names: torch.compile "_orig_mod", DistributedDataParallel and
# DataParallel "module". Torch's own wrapper for activation checkpointing adds one to the paths of
# modules, but leaves it out of states.
_ADDED = ("_orig_mod", "_checkpoint_wrapped_module")


def plain_name(module: nn.Module, name: str) -> str:
    """Return a name in the module's state, or a submodule's path, without the parts of wrappers.

    For a `DistributedDataParallel` around a compiled module with a submodule named "module":

        module._orig_mod.module.weight  →  module.weight
    """
    # Walk down the modules: a part "module" is dropped if a wrapper is there, but kept if the user
    # chose it.
    kept: list[str] = []
    current: nn.Module | None = module
    for part in name.split("."):
        is_data_parallel = isinstance(current, DistributedDataParallel | DataParallel)
        if part not in _ADDED and not (part == "module" and is_data_parallel):
            kept.append(part)
        if current is not None:
            current = current._modules.get(part)
    return ".".join(kept)


def plain_state(module: nn.Module) -> dict[str, Any]:
    """Return the module's state under plain names."""
    return renamed_state(module.state_dict(), lambda name: plain_name(module, name))


def names_of_parameters(
    module: nn.Module, groups: Iterable[Iterable[nn.Parameter]]
) -> list[list[str]]:
    """Return the plain names of each group's parameters, "" for one that is not the module's.

    A tied parameter gets the first of its names in alphabetical order.
    """
    names: dict[int, str] = {}
    # Not `module.named_parameters`, which a user's class may replace.
    for name, parameter in nn.Module.named_parameters(module, remove_duplicate=False):
        plain = plain_name(module, name)
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
    return ".".join(part for part in name.split(".") if part not in (*_ADDED, "module"))


def load_plain_state(module: nn.Module, state: Any) -> None:
    """Load a state with plain names into a module, sharded like the module."""
    current = module.state_dict()
    names: dict[str, str] = {}  # of the module, by plain name
    for path, _ in cast("Any", module.named_modules(remove_duplicate=False)):
        names[plain_name(module, path)] = path
    for name in current:
        names[plain_name(module, name)] = name
    renamed = renamed_state(state, lambda name: names.get(name, name))
    for name, value in renamed.items():
        if isinstance(value, Tensor) and name in current:
            renamed[name] = shard_like(current[name], value)
    module.load_state_dict(renamed)


def renamed_state(state: Mapping[str, Any], change: Callable[[str], str]) -> Any:
    """Return the state under changed names."""
    renamed = cast("Any", OrderedDict())
    for name, value in state.items():
        renamed[change(name)] = value
    # In this attribute torch keeps the versions of the modules, by their paths.
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        renamed._metadata = OrderedDict()
        for path, version in versions.items():
            renamed._metadata[change(path)] = version
    return renamed
