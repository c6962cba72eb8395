"""The source of other libraries at the versions of the record, and what it defines."""

import __future__

import ast
import subprocess
import sys
import urllib.request
import zipfile
from abc import ABCMeta
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("peers_sources")
"""Files that were downloaded before; `record` sets it."""
CITED: dict[str, str] = {}
"""The package and version, or the repository and commit, of each library; `record` reads them."""

_IMPORTED = sys.stdlib_module_names | {"jax", "numpy", "optax", "torch"}


def source(origin: str, path: str) -> str:
    """Return a file of `owner/name@commit` on GitHub, or of `name==version` on the Python Package Index."""
    if "==" in origin:
        name, _, version = origin.partition("==")
        wheels = f"{name.replace('-', '_')}-{version}-*.whl"
        if not list(FOLDER.glob(wheels)):
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", f"--dest={FOLDER}", origin]
            subprocess.run(pip, check=True)
        (wheel,) = FOLDER.glob(wheels)
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(path).decode()
    repository, _, commit = origin.partition("@")
    file = FOLDER / repository / commit / path
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(f"https://raw.githubusercontent.com/{repository}/{commit}/{path}", file)
    return file.read_text(encoding="utf-8")


def definitions(text: str, *names: str, **given: Any) -> dict[str, Any]:
    """Execute a file, or only the functions and classes of these names, wherever in the file they are.

    The given names have their values. Other names that the file imports are real if the standard library,
    NumPy, torch, JAX or optax has them, and stand-ins otherwise.
    """
    tree = ast.parse(text)
    namespace: dict[str, Any] = {"__name__": __name__}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            namespace |= _imported(node)
        else:
            body.append(node)
    if names:
        nested = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))
        body = [node for node in nested if node.name in names]
        assert len(body) == len(names), f"{names} in a file with {len(body)} of them"
    # No annotation is evaluated: it can need a name that is not given.
    flags = __future__.annotations.compiler_flag
    namespace |= given
    exec(compile(ast.Module(body, []), "original", "exec", flags), namespace)
    return namespace


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    root = (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
    if root in _IMPORTED and not getattr(node, "level", 0):
        namespace: dict[str, Any] = {}
        exec(ast.unparse(node), namespace)
        yield from namespace.items()
    else:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            yield name, _Absent(name, (), {"is_absent": True})


class _Absent(ABCMeta):
    """A stand-in for anything: its attributes are stand-ins, and as a decorator it changes nothing."""

    def __getattr__(cls, name: str) -> "_Absent":
        if name.startswith("_"):
            raise AttributeError(name)
        return _Absent(name, (), {"is_absent": True})

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if "is_absent" not in vars(cls):
            return super().__call__(*args, **options)
        return args[0] if args and callable(args[0]) else cls
