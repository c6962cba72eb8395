"""Contributors' pages, and the docstrings of folders, name only files that exist.

The docstring of a folder names all its files.
"""

import ast
import re

import pytest
from support.docs.pages import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TESTS = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
# In CONTRIBUTING, a path ends with a slash or an extension.
PATHS = {
    *re.findall(r"`([\w.]+/[\w./]*(?:/|\.\w+))`", CONTRIBUTING),
    *re.findall(r"`([\w.]+/[\w./]*)`", TESTS),
}
FOLDERS = [
    file.parent
    for package in ("plateau_jax", "torch_bridge")
    for file in sorted((ROOT / package).glob("*/**/__init__.py"))
]


def docstring_of(folder):
    code = (folder / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(code)) or ""


DOCSTRINGS = "\n".join(docstring_of(folder) for folder in FOLDERS)
PATHS_OF_RECIPES = set(
    re.findall(r"`((?:docs|examples|tests|plateau_jax|torch_bridge)/[\w./]*)`", DOCSTRINGS)
)


@pytest.mark.parametrize("path", sorted(PATHS | PATHS_OF_RECIPES))
def test_named_paths_exist(path):
    pattern = path.rstrip("/").replace("NAME", "*")
    names = ("", "tests", "tests/support", "plateau_jax", "torch_bridge")
    found = []
    for name in names:
        found += (ROOT / name).glob(pattern)
        found += (ROOT / name).glob(f"{pattern}.py")
    assert found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_docstring_of_folder_names_its_files(folder):
    named = set(re.findall(r"`(\w+)`", docstring_of(folder)))
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert modules <= named
