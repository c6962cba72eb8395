"""The versions that pyproject.toml names are those that the tests run on."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def _pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "tests" / "versions" / f"{name}.txt").read_text().splitlines()
    pins = [line.partition("#")[0].split("==") for line in lines if not line.startswith("#")]
    return {package: Version(version.strip()) for package, version in pins}


def _requirements(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    found = [Requirement(line) for lines in lists for line in lines]
    return [one for one in found if one.name != "plateau-jax"]


@pytest.mark.parametrize("requirement", _requirements("jax", "torch", "plot"), ids=str)
def test_the_oldest_are_the_floors_and_the_newest_are_allowed(requirement: Requirement) -> None:
    (floor,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
    assert _pins("oldest")[requirement.name] == floor
    assert requirement.specifier.contains(_pins("newest")[requirement.name])


@pytest.mark.parametrize("requirement", _requirements("examples", "test"), ids=str)
def test_what_tests_need_is_pinned_too(requirement: Requirement) -> None:
    specifier = str(requirement.specifier)
    for name in ("oldest", "newest"):
        pin = _pins(name)[requirement.name]
        assert specifier.startswith("==") or requirement.specifier.contains(pin)
    if specifier.startswith(">="):
        assert _pins("oldest")[requirement.name] == Version(specifier[2:])
