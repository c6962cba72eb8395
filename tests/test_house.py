"""The structure of the product's files, and the versions that it supports."""

import ast
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@cache
def _imports() -> dict[str, set[str]]:
    """Map each file of the product to the files that it imports, also inside functions."""
    paths = (path for package in ("plateau_jax", "torch_bridge") for path in (ROOT / package).rglob("*.py"))
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        imports[module] = names & modules.keys()
    return imports


def test_no_import_cycles() -> None:
    try:
        TopologicalSorter(_imports()).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_torch_bridge_imports_plateau_jax_in_one_file() -> None:
    """And `plateau_jax` never imports `torch_bridge`."""
    crossing = {
        module
        for module, names in _imports().items()
        if any(name.partition(".")[0] != module.partition(".")[0] for name in names)
    }
    assert crossing == {"torch_bridge.curve_api"}


def _pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "tests" / "versions" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("#")[0].split("==") for line in lines if not line.startswith("#")]
    return {package: Version(version.strip()) for package, version in pins}


EXTRAS = {"numpy": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
REQUIREMENTS = [
    pytest.param(extra, Requirement(line), id=line)
    for extra, lines in EXTRAS.items()
    for line in lines
    if not line.startswith("plateau-jax[")
]


@pytest.mark.parametrize(("extra", "requirement"), REQUIREMENTS)
def test_both_ends_of_the_versions_are_tested(extra: str, requirement: Requirement) -> None:
    assert requirement.specifier.contains(_pins("ci")[requirement.name])
    if extra != "dev":  # any release of the tools works, so .ci/versions does not install them
        floors = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
        assert floors == [_pins("oldest")[requirement.name]]
        assert requirement.specifier.contains(_pins("newest")[requirement.name])
