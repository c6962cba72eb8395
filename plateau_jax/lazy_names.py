"""Public names that a package imports on first use, and errors that name the extra to install.

The package's `__init__.pyi` is the only list of them: type checkers read it, and so does this
module.
"""

import ast
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def attach(
    package: str, extra: str, needs: Mapping[str, str] | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__all__`, `__getattr__` and `__dir__` for one of the two packages.

    Args:
        package: The name of the package.
        extra: The extra that installs the packages that its names may need.
        needs: For some modules, the package without which their names are left out of `__all__`.
    """
    modules = _modules_of_names(package)
    # Without JAX, `from plateau_jax import *` must not fail on the names that need it.
    left_out: set[str] = set()
    for module, needed in (needs or {}).items():
        if not _is_installed(needed):
            left_out.add(module)
    names = sorted(name for name, module in modules.items() if module not in left_out)

    def import_name(name: str) -> Any:
        if name == "__version__":
            return metadata.version("plateau-jax")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_missing_package(name, extra):
            value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up bypasses `__getattr__`
        return value

    return names, import_name, names.copy


def _modules_of_names(package: str) -> dict[str, str]:
    """Return the module of each public name of a package, from the stub of the package."""
    stub = Path(__file__).parents[1] / package / "__init__.pyi"
    modules: dict[str, str] = {}
    for node in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                modules[alias.name] = node.module
    return modules


def _is_installed(package: str) -> bool:
    # `find_spec` raises a ValueError for a module without a spec, such as a mock in `sys.modules`.
    return bool(sys.modules.get(package)) or find_spec(package) is not None


@contextmanager
def naming_missing_package(name: str, extra: str) -> Generator[None]:
    """Say what to install if an import that `name` needs fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package_error(name, error, extra) from None


def missing_package_error(name: str, error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error to raise if `name` cannot be imported; it says what to install."""
    package = (error.name or "").partition(".")[0]
    if not package or _is_installed(package):  # a module inside it is missing
        return error
    message = f"{name} needs {package}: pip install 'plateau-jax[{extra}]'"
    return ModuleNotFoundError(message, name=package)
