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


def files_with(folder: Path, text: str) -> list[str]:
    """Return the names of the files that contain a text."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return [str(file.relative_to(folder)) for file in files if text.encode() in file.read_bytes()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Everything that the sdist has."""
    for pattern in [*PUBLISHED, "/pyproject.toml"]:
        for source in ROOT.glob(pattern.removeprefix("/")):
            target = tmp_path / source.name
            if source.is_dir():
                shutil.copytree(
                    source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(source, target)
    return tmp_path


def test_address_replaces_its_placeholder_everywhere(copy: Path) -> None:
    waiting = set(files_with(copy, PLACEHOLDER))
    assert publish(copy, ADDRESS).returncode == 0
    assert files_with(copy, PLACEHOLDER) == []
    assert waiting <= set(files_with(copy, ADDRESS))


def test_readers_install_from_pypi_afterwards(copy: Path) -> None:
    """Except in a section that needs the files of a clone; its commands then begin with one."""
    publish(copy, ADDRESS)
    for page in [copy / "README.md", *(copy / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"not on PyPI|clone (of )?(the|this) repository", text), page
        for section in sections(page):
            commands = "\n".join(block.code for block in section.blocks if block.language == "sh")
            if re.search(r"pip install [^#\n]*'\.\[", commands):
                assert "examples/" in commands, (page, section.heading)
    readme = (copy / "README.md").read_text(encoding="utf-8")
    assert "pip install 'plateau-jax[jax]'" in readme
    assert f"git clone {ADDRESS} && cd plateau-jax\npip install '.[examples]'" in readme


def test_nothing_is_written_after_an_error(copy: Path) -> None:
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    assert "must be like" in publish(copy, "https://github.com/OWNER/plateau-jax.git").stderr
    readme = copy / "README.md"
    text = readme.read_bytes()
    readme.write_bytes(text.replace(b"not on PyPI yet", b"on no index"))
    assert "README.md has changed" in publish(copy, ADDRESS).stderr
    readme.write_bytes(text)
    assert {file: file.read_bytes() for file in before} == before
    assert publish(copy, ADDRESS).returncode == 0
    assert "comes too late" in publish(copy, ADDRESS).stderr
