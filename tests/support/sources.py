"""The product's files as syntax trees: what they import, and which private names of others they use."""

import ast
import builtins
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = "plateau_jax", "torch_bridge"

_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_DUNDER = re.compile(r"__\w+__")

_KINDS: Any = [kind for of in (builtins, types) for kind in vars(of).values() if isinstance(kind, type)]
PROMISED = {
    *(name for kind in _KINDS for name in dir(kind)),
    *("__all__", "__file__", "__getattr__", "__main__", "__missing__", "__post_init__", "__version__"),
    *("_asdict", "_exit", "_fields", "_getframe", "_replace"),
}
"""Names that begin with an underscore, and that Python documents."""


class Source(NamedTuple):
    """A file of the product."""

    path: Path
    """From the root of the repository."""
    module: str
    tree: ast.Module
    lines: list[str]

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


class Import(NamedTuple):
    """One module that a statement imports, or imports from."""

    module: str
    node: ast.Import | ast.ImportFrom
    in_function: bool


@cache
def sources() -> list[Source]:
    """All files of the product."""
    found: list[Source] = []
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text, relative = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        found.append(Source(relative, module, ast.parse(text), text.splitlines()))
    return found


def imports(source: Source) -> list[Import]:
    """The modules that a file imports, also for type checkers only.

    `from package import name` imports `package.name` where that is a file of the product.
    """
    ours = {source.module for source in sources()}
    found: list[Import] = []
    for node, in_function in _statements(source.tree, False):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node, in_function) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{source.place(node)}: imports are absolute"
            names = dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
            modules = dict.fromkeys(name if name in ours else node.module for name in names)
            found += [Import(module, node, in_function) for module in modules]
    return found


def _statements(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        yield from _statements(child, in_function or isinstance(child, ast.FunctionDef | ast.Lambda))


def private_names() -> dict[str, list[str]]:
    """Private names of other libraries, and protocols of theirs such as `__wrapped__`: where each is used.

    That is an attribute; a keyword argument; a string, as for `getattr`; a part of an imported module's
    path; an imported name. A name that the product defines anywhere counts as ours, so a name that both
    have is not seen.
    """
    ours = _own_names()
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for node in ast.walk(source.tree):
            for name in _names(node):
                is_private = _PRIVATE.fullmatch(name) is not None and name not in ours
                if (is_private or _DUNDER.fullmatch(name)) and name not in PROMISED:
                    found[name].append(source.place(node))  # pyright: ignore[reportArgumentType]  (it has a line)
    return found


def _names(node: ast.AST) -> list[str]:
    """The names that a node uses, and special methods that it defines."""
    match node:
        case ast.Attribute(attr=name):
            return [name]
        case ast.keyword(arg=str(name)):
            return [name]
        case ast.Constant(value=str(name)):
            return [name]
        case ast.FunctionDef(name=name) if _DUNDER.fullmatch(name):
            return [name]
        case ast.Import(names=aliases):
            return [part for alias in aliases for part in alias.name.split(".")]
        case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] not in PACKAGES:
            return [*module.split("."), *(alias.name for alias in aliases)]
        case _:
            return []


def _own_names() -> set[str]:
    """Functions, classes, arguments, variables and attributes of `self`.

    A class that declares a name without a value inherits it from another library.
    """
    found, declared = set[str](), set[str]()
    for node in (node for source in sources() for node in ast.walk(source.tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                declared.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return found - declared
