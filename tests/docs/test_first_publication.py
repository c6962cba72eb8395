"""`.ci/first_publication` fills in the address everywhere, and readers then install from PyPI.

CONTRIBUTING says to delete the script, and this file, after the first release.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.docs.pages import ROOT, sections

ADDRESS = "https://github.com/OWNER/plateau-jax"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PUBLISHED = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
PLACEHOLDER = PROJECT["project"]["urls"]["Repository"]

pytestmark = pytest.mark.skipif(".example/" not in PLACEHOLDER, reason="the address is filled in")


def publish(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, folder / ".ci" / "first_publication", address]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def files_with(folder: Path, text: str) -> set[Path]:
    """Return the files that contain a text, by their paths in the folder."""
    files: set[Path] = set()
    for file in folder.rglob("*"):
        if file.is_file() and text.encode() in file.read_bytes():
            files.add(file.relative_to(folder))
    return files


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def copy_sdist(folder: Path) -> None:
    without_caches = shutil.ignore_patterns("__pycache__")
    for pattern in [*PUBLISHED, "/pyproject.toml"]:
        for source in ROOT.glob(pattern.removeprefix("/")):
            target = folder / source.name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=without_caches)
            else:
                shutil.copy(source, target)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Everything that the sdist has."""
    copy_sdist(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the address, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("published")
    copy_sdist(folder)
    publish(folder, ADDRESS)
    return folder


def test_address_replaces_its_placeholder_everywhere(copy: Path) -> None:
    with_placeholder = files_with(copy, PLACEHOLDER)
    assert publish(copy, ADDRESS).returncode == 0
    assert files_with(copy, PLACEHOLDER) == set()
    assert with_placeholder <= files_with(copy, ADDRESS)


def test_readme_installs_from_pypi_and_clones_for_the_tests(published: Path) -> None:
    readme = (published / "README.md").read_text(encoding="utf-8")
    assert "pip install 'plateau-jax[jax]'" in readme
    assert f"git clone {ADDRESS} && cd plateau-jax\npip install -e '.[test]'" in readme


def test_pages_do_not_ask_for_a_clone(published: Path) -> None:
    for page in [published / "README.md", *(published / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert "not on PyPI" not in text, page
        for phrase in ("clone the", "clone this", "clone of the", "clone of this"):
            assert f"{phrase} repository" not in text, page


def test_only_sections_about_examples_install_from_a_clone(published: Path) -> None:
    for page in [published / "README.md", *(published / "docs").rglob("*.md")]:
        for section in sections(page):
            commands = "\n".join(section.code_in("sh"))
            if re.search(r"pip install [^#\n]*(?<!-e )'\.\[", commands):
                assert "examples/" in commands, (page, section.heading)


def test_wrong_address_changes_no_file(copy: Path) -> None:
    before = contents(copy)
    assert "must be like" in publish(copy, "https://github.com/OWNER/plateau-jax.git").stderr
    assert contents(copy) == before


def test_readme_that_has_changed_is_left_as_it_is(copy: Path) -> None:
    readme = copy / "README.md"
    readme.write_bytes(readme.read_bytes().replace(b"not on PyPI yet", b"on no index"))
    before = contents(copy)
    assert "README.md has changed" in publish(copy, ADDRESS).stderr
    assert contents(copy) == before


def test_address_is_filled_in_once(copy: Path) -> None:
    assert publish(copy, ADDRESS).returncode == 0
    published = contents(copy)
    assert "comes too late" in publish(copy, ADDRESS).stderr
    assert contents(copy) == published
