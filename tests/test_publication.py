"""What the first publication needs: `.ci/first_publication` on a copy, the linters, the recipe, the hooks."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from support.docs.pages import sections

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
ADDRESS = "https://github.com/some-owner/some.repository"
IS_PUBLISHED = ".example/" not in PROJECT["urls"]["Repository"]

before_publication = pytest.mark.skipif(IS_PUBLISHED, reason="the address is filled in")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files of a checkout that the sdist has."""
    directory = tmp_path_factory.mktemp("copy")
    for path in ROOT.iterdir():
        if path.is_file() and path.name != "PKG-INFO":  # the build adds it to the sdist
            shutil.copy(path, directory)
    for name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        if (ROOT / name[1:]).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name[1:], directory / name[1:], symlinks=True, ignore=ignored)
    return directory


@pytest.fixture(scope="module")
def published(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after a publication."""
    directory = shutil.copytree(copy, tmp_path_factory.mktemp("published") / "copy", symlinks=True)
    run = _publish(directory, ADDRESS)
    assert run.returncode == 0, run.stderr
    return directory


def _publish(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, copy / ".ci" / "first_publication", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _contents(copy: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        yield path, path.read_bytes()


@before_publication
def test_no_placeholder_remains_after_publication(copy: Path, published: Path) -> None:
    host = str(urlsplit(PROJECT["urls"]["Repository"]).hostname).encode()
    assert any(host in content for _, content in _contents(copy))
    assert [path for path, content in _contents(published) if host in content] == []
    urls = tomllib.loads((published / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert all(url.startswith(ADDRESS) for url in urls.values())
    for name in ("CITATION.cff", ".ci/conda/recipe.yaml", ".github/SECURITY.md", "docs/conf.py"):
        assert ADDRESS in (published / name).read_text(encoding="utf-8")


@before_publication
def test_pages_install_from_pypi_after_publication(published: Path) -> None:
    for path in [published / "README.md", *(published / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"in a clone of|not on PyPI|\$ADDRESS", text), path.name
    code = [block.code for section in sections(published / "README.md") for block in section.blocks]
    installs, runs = (text.splitlines() for text in code if "pip install" in text)
    assert installs[0].startswith("pip install 'plateau-jax[jax]'")
    assert runs[0] == f"git clone {ADDRESS} && cd some.repository"
    assert max(len(line) for line in [*installs, *runs]) <= 84


def _assert_rejected(directory: Path, arguments: str, message: str) -> None:
    """Check that a publication prints this error and changes nothing."""
    before = list(_contents(directory))
    run = _publish(directory, *arguments.split(" "))
    assert (run.returncode, run.stderr) == (1, f"{message}\n")
    assert list(_contents(directory)) == before


@before_publication
def test_second_publication_is_rejected(published: Path) -> None:
    for address in (ADDRESS, "https://github.com/another/plateau-jax"):
        late = f"ADDRESS = {address!r} comes too late: the address is {ADDRESS} already"
        _assert_rejected(published, address, late)


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "plateau-jax", "https://github.com/owner", "https://github.com/owner/name/"),
        *("https://github.com/owner/name.git", "https://github.com/owner/name/tree/main"),
        *("https://github.com/-owner/name", "https://github.com/owner/name\n"),
        *("http://github.com/owner/name", "https://gitlab.com/owner/name"),
        "https://github.com/owner/name https://github.com/owner/name",
    ],
)
def test_wrong_addresses_are_rejected(copy: Path, arguments: str) -> None:
    message = f"ADDRESS = {arguments!r} must be like https://github.com/OWNER/plateau-jax"
    _assert_rejected(copy, arguments, message)


@before_publication
def test_changed_file_is_rejected(copy: Path) -> None:
    readme = copy / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace("The package is not on PyPI yet", "It is not on PyPI"), encoding="utf-8")
    before = list(_contents(copy))
    run = _publish(copy, ADDRESS)
    assert run.returncode == 1
    assert run.stderr.startswith("README.md has changed: it has nothing like The package is not on PyPI yet")
    assert list(_contents(copy)) == before
    readme.write_text(text, encoding="utf-8")


@before_publication
def test_release_needs_the_tag_and_the_address(copy: Path, published: Path) -> None:
    workflow = (copy / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    checks = "\n".join(re.findall(r"^ *(grep .*)$", workflow, re.MULTILINE))
    names = {"GITHUB_SERVER_URL": ADDRESS[:18], "GITHUB_REPOSITORY": ADDRESS[19:]}

    def passes(directory: Path, tag: str) -> bool:
        environment = {**os.environ, **names, "GITHUB_REF_NAME": tag}
        return not subprocess.call(["bash", "-ec", checks], cwd=directory, env=environment)

    tag = "v" + PROJECT["version"]
    assert [passes(copy, tag), passes(published, tag), passes(published, f"{tag}.1")] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["copy", "published"])
def test_linters_of_metadata_pass(request: pytest.FixtureRequest, fixture: str) -> None:
    directory = request.getfixturevalue(fixture)
    for tool in ("check_jsonschema", "sp_repo_review", "validate_pyproject"):
        if find_spec(tool) is None:
            pytest.skip(f"no {tool}: '.[dev]' installs it")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [directory / ".ci" / "lint_metadata"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_hooks_have_the_versions_of_ci() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pins = (ROOT / "tests" / "versions" / "ci.txt").read_text(encoding="utf-8").splitlines()
    versions = re.findall(r"([\w-]+)(?:\[\w+\])?==([\w.]+)", hooks)
    versions += [("pyright", version) for version in re.findall(r"PYRIGHT_\w+=(\S+) pyright", hooks)]
    assert {"ruff", "pyright", "zizmor"} <= {name for name, _ in versions}
    assert {f"{name}=={version}" for name, version in versions} <= set(pins)


def test_conda_recipe_has_the_ranges_of_pyproject() -> None:
    recipe = (ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    lines = re.findall(r"^    - ([\w-]+) ([<>]=?[\w.,<>=]+)$", recipe, re.MULTILINE)
    ranges = {name: SpecifierSet(specifier) for name, specifier in lines}
    extras = PROJECT["optional-dependencies"]
    required = [*PYPROJECT["build-system"]["requires"], *PROJECT["dependencies"]]
    required += [*extras["jax"], *extras["torch"], *extras["plot"]]
    conda_names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    requirements = [Requirement(line) for line in required]
    assert ranges == {conda_names.get(one.name, one.name): one.specifier for one in requirements}
    assert re.search(r'python_min: "(.*)"', recipe)[1] == PROJECT["requires-python"].removeprefix(">=")
