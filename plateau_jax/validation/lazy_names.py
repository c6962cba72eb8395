"""Public names that a package imports on first use. Its `__init__.pyi` lists them, for type checkers too."""

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
    """`__all__`, `__getattr__` and `__dir__` of one of the two packages.

    Args:
        package: Its name.
        extra: The extra that brings what its names may need.
        needs: Packages without which the names of a module are not in `__all__`.
    """
    modules = _modules_of(package)
    needed = {name: (needs or {}).get(module, ()) for name, module in modules.items()}
    names = sorted(name for name, packages in needed.items() if optional_packages.are_installed(*packages))

    def get(name: str) -> Any:
        if name == "__version__":
            return optional_packages.installed_version()
        if name not in modules:
            for other in _PACKAGES:
                if name in _modules_of(other):
                    raise optional_packages.wrong_package_error(package, name, other)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise optional_packages.missing_package_error(name, error, extra) from None
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    return names, get, names.copy


def _modules_of(package: str) -> dict[str, str]:
    """The module of each public name, read from the package's stub. The package is not imported."""
    stub = Path(__file__).parents[2] / package / "__init__.pyi"
    imports = (node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names if node.module}
