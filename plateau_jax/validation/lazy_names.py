"""Public names that a package imports on first use.

The package's `__init__.pyi` is the only list of them: type checkers read it, and so does this module.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from plateau_jax.validation import optional_packages

_PACKAGES = "plateau_jax", "torch_bridge"


def attach(
    package: str, extra: str, needs: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__all__`, `__getattr__` and `__dir__` for one of the two packages.

    Args:
        package: The name of the package.
        extra: The extra that installs what its names may need.
        needs: For a module, the packages without which its names are left out of `__all__`.
    """
    modules = _modules_of(package)
    needed = {name: (needs or {}).get(module, ()) for name, module in modules.items()}
    # Without JAX, `from plateau_jax import *` must not fail on the names that need it.
    names = sorted(name for name, packages in needed.items() if optional_packages.are_installed(*packages))

    def import_name(name: str) -> Any:
        if name == "__version__":
            return optional_packages.installed_version()
        if name not in modules:
            for other_package in _PACKAGES:
                if name in _modules_of(other_package):
                    raise optional_packages.wrong_package_error(package, name, other_package)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise optional_packages.missing_package_error(name, error, extra) from None
        setattr(sys.modules[package], name, value)  # the next look-up bypasses `__getattr__`
        return value

    return names, import_name, names.copy


def _modules_of(package: str) -> dict[str, str]:
    """Return the module of each public name, read from the package's stub without importing the package."""
    stub = Path(__file__).parents[2] / package / "__init__.pyi"
    imports = (node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names if node.module}
