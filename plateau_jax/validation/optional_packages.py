"""Optional packages: which are installed, and how to install a missing one."""

import sys
from importlib import metadata
from importlib.util import find_spec

_PACKAGES_OF_EXTRA = {
    "jax": ("jax", "jaxlib", "optax"),
    "torch": ("torch", "safetensors"),
    "plot": ("matplotlib",),
}
"""The packages that each extra installs."""


def are_installed(*packages: str) -> bool:
    """Return True if all these top-level packages can be found, without importing them."""
    return all(
        # A module that was put into `sys.modules` by hand has no spec; None there blocks the import.
        bool(sys.modules[package]) if package in sys.modules else _has_spec(package)
        for package in packages
    )


def _has_spec(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # from an import hook that blocks the package
        return False


def missing_package_error(name: str, error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error to raise if `name` cannot be imported: how to install the missing package.

    An error that pip cannot fix is returned unchanged, such as a module missing inside an installed package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES_OF_EXTRA[extra] or are_installed(package):
        return error
    return ModuleNotFoundError(f"{name} needs {package}: pip install 'plateau-jax[{extra}]'", name=package)


def wrong_package_error(module: str, name: str, package: str) -> ImportError:
    """Return the error to raise if a module is asked for a public name of another package."""
    # Not an AttributeError: `from module import name` would replace its message with Python's own.
    return ImportError(f"{name} is not in {module}: write from {package} import {name}", name=module)


def installed_version() -> str:
    """Return the version of the installed distribution; "0+unknown" in a checkout that is not installed."""
    try:
        return metadata.version("plateau-jax")
    except metadata.PackageNotFoundError:
        return "0+unknown"
