"""Version ranges in pyproject.toml: no upper bound without a reason, both ends tested."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(PYPROJECT)["project"]
EXTRAS = {"numpy": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
TOOLS = ("dev",)
"""Extras that only hold tools. Any release of these works, so .ci/versions does not install them."""


def _pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "tests" / "versions" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("#")[0].split("==") for line in lines if not line.startswith("#")]
    return {package: Version(version.strip()) for package, version in pins}


def _requirements(*, tools: bool = True) -> list[str]:
    lists = [lines for extra, lines in EXTRAS.items() if tools or extra not in TOOLS]
    return [line for lines in lists for line in lines if not line.startswith("plateau-jax[")]


@pytest.mark.parametrize("line", _requirements())
def test_versions_in_ci_are_pinned_and_allowed(line: str) -> None:
    requirement = Requirement(line)
    assert requirement.specifier.contains(_pins("ci")[requirement.name])


@pytest.mark.parametrize("line", _requirements(tools=False))
def test_oldest_versions_are_the_lower_bounds(line: str) -> None:
    requirement = Requirement(line)
    (floor,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
    assert _pins("oldest")[requirement.name] == floor
    assert requirement.specifier.contains(_pins("newest")[requirement.name])


@pytest.mark.parametrize("line", _requirements())
def test_upper_bounds_have_a_reason_in_a_comment(line: str) -> None:
    operators = {one.operator for one in Requirement(line).specifier}
    assert operators <= {">=", "<"}
    if "<" in operators:
        assert re.search(rf'"{re.escape(line)}"\]?,? *#', PYPROJECT), f"{line} has no comment in its line"


def test_each_package_has_one_range() -> None:
    names = [Requirement(line).name for line in _requirements()]
    assert sorted(names) == sorted(set(names))


def test_changelog_begins_with_the_current_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == PROJECT["version"]
    assert "\nversion:" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
