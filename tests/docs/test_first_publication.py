"""`.ci/first_publication` fills in the address everywhere, and readers then install from PyPI.

The script says to delete it, and this file, after the first release.
"""

import shutil
import subprocess
import sys
import tomllib

import pytest
from support.docs.pages import ROOT

ADDRESS = "https://github.com/OWNER/plateau-jax"
CONFIGURATION = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(CONFIGURATION)
TARGETS = PROJECT["tool"]["hatch"]["build"]["targets"]
PUBLISHED = TARGETS["sdist"]["include"]
PLACEHOLDER = PROJECT["project"]["urls"]["Repository"]

pytestmark = pytest.mark.skipif(".example/" not in PLACEHOLDER, reason="the address is filled in")


def publish(folder, address):
    command = [sys.executable, folder / ".ci" / "first_publication", address]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def files_with(folder, text):
    """Return the files that contain a text, by their paths in the folder."""
    files = set()
    for file, content in contents(folder).items():
        if text.encode() in content:
            files.add(file.relative_to(folder))
    return files


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def copy_sdist(folder):
    without_caches = shutil.ignore_patterns("__pycache__")
    for pattern in [*PUBLISHED, "/pyproject.toml"]:
        for source in ROOT.glob(pattern.removeprefix("/")):
            target = folder / source.name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=without_caches)
            else:
                shutil.copy(source, target)


@pytest.fixture
def copy(tmp_path):
    """Everything that the sdist has."""
    copy_sdist(tmp_path)
    return tmp_path


def test_address_replaces_its_placeholder_everywhere(copy):
    with_placeholder = files_with(copy, PLACEHOLDER)
    process = publish(copy, ADDRESS)
    assert process.returncode == 0
    assert files_with(copy, PLACEHOLDER) == set()
    assert with_placeholder <= files_with(copy, ADDRESS)


def test_readme_installs_from_pypi_and_clones_for_the_tests(copy):
    publish(copy, ADDRESS)
    readme = (copy / "README.md").read_text(encoding="utf-8")
    assert "pip install 'plateau-jax[jax]'" in readme
    assert f"git clone {ADDRESS} && cd plateau-jax\n" in readme
    assert "pip install -e '.[test]'" in readme


def test_wrong_address_changes_no_file(copy):
    before = contents(copy)
    process = publish(copy, "https://github.com/OWNER/plateau-jax.git")
    assert "must be like" in process.stderr
    assert contents(copy) == before
