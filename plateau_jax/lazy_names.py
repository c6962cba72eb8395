"""Public names that a package imports on first use, and errors that name the extra to install.

Each package lists them in its `__init__.py`. Type checkers read them in its `__init__.pyi`.
"""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from plateau_jax.version import VERSION


def attach(
    package: str,
    public_names: Mapping[str, Sequence[str]],
    extra: str,
    needs: Mapping[str, str] | None = None,
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Build `__all__`, `__getattr__` and `__dir__` for one of the two packages.

    Args:
        package: The name of the package.
        public_names: By module, the names that the package imports from it.
        extra: The extra that installs the packages that its names may need.
        needs: For some modules, the package without which their names are left out of `__all__`.
    """
    modules = {name: module for module, names in public_names.items() for name in names}
    # Without JAX, `help(plateau_jax)` and `from plateau_jax import *` must not fail on names that
    # need it.
    left_out = {module for module, needed in (needs or {}).items() if _is_missing(needed)}
    names = sorted(name for name, module in modules.items() if module not in left_out)

    def import_name(name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_missing_package(name, extra):
            value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up bypasses `__getattr__`
        return value

    return names, import_name, names.copy


def _is_missing(package: str) -> bool:
    # `find_spec` raises a ValueError for a mock in `sys.modules`.
    return not sys.modules.get(package) and find_spec(package) is None


@contextmanager
def naming_missing_package(name: str, extra: str) -> Generator[None]:
    """Say what to install if an import that `name` needs fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or not _is_missing(package):  # a module inside it is missing
            raise
        message = f"{name} needs {package}: pip install 'plateau-jax[{extra}]'"
        raise ModuleNotFoundError(message, name=package) from None
