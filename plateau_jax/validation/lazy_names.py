"""Public names that a package imports on first use, and errors that name the extra to install.

The package's `__init__.pyi` is the only list of them: type checkers read it, and so does this module.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any


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
    # Without JAX, `from plateau_jax import *` must not fail on the names that need it.
    names = sorted(
        name for name, module in modules.items() if all(map(is_installed, (needs or {}).get(module, ())))
    )

    def import_name(name: str) -> Any:
        if name == "__version__":
            return _installed_version()
        if name not in modules:
            for other in ("plateau_jax", "torch_bridge"):
                if name in _modules_of(other):
                    # Of an AttributeError, `from package import name` would replace the message.
                    raise ImportError(f"{name} is not in {package}: write from {other} import {name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise missing_package_error(name, error, extra) from None
        setattr(sys.modules[package], name, value)  # the next look-up bypasses `__getattr__`
        return value

    return names, import_name, names.copy


def _modules_of(package: str) -> dict[str, str]:
    """Return the module of each public name, read from the package's stub without importing the package."""
    stub = Path(__file__).parents[2] / package / "__init__.pyi"
    imports = (node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names if node.module}


def _installed_version() -> str:
    try:
        return metadata.version("plateau-jax")
    except metadata.PackageNotFoundError:  # in a checkout that is not installed
        return "0+unknown"


def is_installed(package: str) -> bool:
    """Return True if a top-level package can be found, without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook blocks it; it was put into `sys.modules` by hand
        return bool(sys.modules.get(package))


def missing_package_error(name: str, error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error to raise if `name` cannot be imported: how to install the missing package."""
    package = (error.name or "").partition(".")[0]
    if not package or is_installed(package):  # a module inside it is missing
        return error
    return ModuleNotFoundError(f"{name} needs {package}: pip install 'plateau-jax[{extra}]'", name=package)
