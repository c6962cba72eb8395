"""The public names that each package defines."""

from typing import Any

import plateau_jax
import torch_bridge

PACKAGES = (plateau_jax, torch_bridge)

NAMES: dict[str, Any] = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    # `torch_bridge` re-exports the curves of `plateau_jax`, and `follow` is another name of `Follower`.
    if getattr(package, name).__module__.startswith(f"{package.__name__}.")
    if getattr(package, name).__name__ == name
}
