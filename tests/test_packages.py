"""The two packages: their public names, how their files import each other, supported versions."""

import ast
import pickle
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import plateau_jax
import torch_bridge

ROOT = Path(__file__).parents[1]

CURVE = "plateau_jax.curves.curve"
"""The only file of the curve that imports tools, inside methods."""


# Public names.


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_public_names_are_listed_and_pickle(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert value.__name__ == name
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_type_checkers_see_the_same_names(package):
    seen = {}
    for node in ast.parse(Path(f"{package.__file__}i").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            seen.setdefault(node.module or "", []).extend(alias.name for alias in node.names)
    assert seen == package._PUBLIC_NAMES


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_unknown_name(package):
    with pytest.raises(AttributeError, match="no attribute 'lambda_lrs'"):
        package.lambda_lrs  # noqa: B018 -- looking the name up is the test


@pytest.mark.parametrize("package", [plateau_jax, torch_bridge])
def test_version_is_that_of_the_distribution(package):
    assert package.__version__ == metadata.version("plateau-jax")


# Which files import which.


@cache
def _trees():
    """Map each file of the product to its syntax tree."""
    trees = {}
    for package in ("plateau_jax", "torch_bridge"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts)
            source = path.read_text(encoding="utf-8")
            trees[name.removesuffix(".__init__")] = ast.parse(source)
    return trees


def _imported_names(module):
    """Return the names of everything that a file imports, also from other libraries.

    Imports inside functions and under `TYPE_CHECKING` count too. A public name of `plateau_jax` is
    imported from the file that defines it.
    """
    names = set()
    for node in ast.walk(_trees()[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= _names_from(node)
    return names


def _names_from(node):
    """Return the names that `from module import name` imports."""
    names = {f"{node.module}.{alias.name}" for alias in node.names}
    if node.module == "plateau_jax":
        imported = {alias.name for alias in node.names}
        for module, public_names in plateau_jax._PUBLIC_NAMES.items():
            if imported & set(public_names):
                names.add(module)
    return names


@cache
def _imports():
    """Map each file of the product to the files that it imports."""
    modules = _trees().keys()
    return {module: _imported_names(module) & modules for module in modules}


def test_no_import_cycles():
    """Tools look at curves, and methods of `Curve` import them when they are called."""
    imports = _imports() | {CURVE: _imports()[CURVE] - _late_tools(CURVE)}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def _late_tools(module):
    """Return the tools that a file imports only inside functions."""
    at_once = set()
    for node in _trees()[module].body:
        if isinstance(node, ast.ImportFrom):
            at_once |= {node.module, *_names_from(node)}
    late = _imports()[module] - at_once
    return {name for name in late if name.startswith("plateau_jax.tools")}


def _listed_parts():
    """Return the folders and files of each part, in the order in which CONTRIBUTING lists them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.partition("```text\n")[2].partition("```")[0]
    parts, folder = [], ""
    for line in re.sub(r"\(.*?\)", "", block).splitlines():
        title, *folders, names = re.split(" {2,}", line.rstrip())
        if title:
            parts.append([])
        if folders:
            folder = folders[0].replace("/", ".")
        for name in re.findall(r"[\w.]+", names):
            parts[-1].append(folder + name.removesuffix(".py"))
    return parts


def test_folders_import_only_those_before_them():
    """Training and tools import the curve, too; `Curve` imports tools when they are called."""
    curve, *others = _listed_parts()
    places = {}
    for part in (curve, *others):
        allowed = set() if part is curve else set(curve)
        for name in part:
            allowed.add(name)
            places[name] = frozenset(allowed)

    def place_of(module):
        return next((name for name in places if f"{module}.".startswith(f"{name}.")), None)

    unlisted = {module for module in _trees() if place_of(module) is None}
    assert unlisted == {
        "plateau_jax",
        "plateau_jax.__main__",
        "plateau_jax.tools",
        "torch_bridge",
        "torch_bridge.training",
    }
    for module in _trees().keys() - unlisted:
        imports = _imports()[module] - unlisted
        if module == CURVE:
            imports -= _late_tools(CURVE)
        assert {place_of(name) for name in imports} <= places[place_of(module)], module


def test_plateau_jax_never_imports_torch_bridge():
    for module in _trees():
        if module.startswith("plateau_jax"):
            assert not any(name.startswith("torch_bridge") for name in _imports()[module])


# Versions of dependencies.


def _pins(name):
    """Return the version of each package in a file of `tests/versions`."""
    text = (ROOT / "tests" / "versions" / f"{name}.txt").read_text(encoding="utf-8")
    pins = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        pin = line.partition("#")[0]
        package, version = pin.split("==")
        pins[package] = Version(version.strip())
    return pins


def _requirements():
    """Yield each dependency, with the extra that it belongs to."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = {"no extra": project["dependencies"], **project["optional-dependencies"]}
    for extra, lines in extras.items():
        for line in lines:
            if not line.startswith("plateau-jax["):
                yield pytest.param(extra, Requirement(line), id=line)


def _lower_bounds(requirement):
    bounds = [bound for bound in requirement.specifier if bound.operator == ">="]
    return [Version(bound.version) for bound in bounds]


@pytest.mark.parametrize(("extra", "requirement"), list(_requirements()))
def test_both_ends_of_the_versions_are_tested(extra, requirement):
    assert requirement.specifier.contains(_pins("ci")[requirement.name])
    # Any release of the tools works, so .ci/versions does not install them.
    if extra != "dev":
        assert _lower_bounds(requirement) == [_pins("oldest")[requirement.name]]
        assert requirement.specifier.contains(_pins("newest")[requirement.name])
