"""Optional packages: which are installed, and how to install a missing one."""

import sys
from importlib import metadata
from importlib.util import find_spec

_BROUGHT_BY = {
    "jax": ("jax", "jaxlib", "optax"),
    "torch": ("torch", "safetensors"),
    "plot": ("matplotlib",),
}
"""The packages that each extra brings."""


def are_installed(*packages: str) -> bool:
    """Whether all these top-level packages can be found; none of them is imported."""
    return all(
        # A module of that name may have been put in place by hand, and then has no spec to be found.
        bool(sys.modules[package]) if package in sys.modules else find_spec(package) is not None
        for package in packages
    )


def missing_package_error(name: str, error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """What to raise where `name` could not be imported: advice, if a package of the extra is not installed.

    Any other error is returned as it is. A module that is missing inside of an installed package, for
    instance, is nothing that pip could bring.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _BROUGHT_BY[extra] or are_installed(package):
        return error
    return ModuleNotFoundError(f"{name} needs {package}: pip install 'plateau-jax[{extra}]'", name=package)


def wrong_package_error(module: str, name: str, package: str) -> ImportError:
    """What to raise where a module is asked for a public name of another package.

    It is no AttributeError: `from module import name` would replace its message by Python's own.
    """
    return ImportError(f"{name} is not in {module}: write from {package} import {name}", name=module)


def installed_version() -> str:
    """The version of the installed distribution; "0+unknown" in a checkout that was not installed."""
    try:
        return metadata.version("plateau-jax")
    except metadata.PackageNotFoundError:
        return "0+unknown"
