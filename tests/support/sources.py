"""The product's files as syntax trees: their imports, their prose, and private names of other libraries."""

import ast
import builtins
import io
import re
import tokenize
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

_TYPES: Any = [value for module in (builtins, types) for value in vars(module).values()]
DOCUMENTED = {
    *(name for value in _TYPES if isinstance(value, type) for name in dir(value)),
    *("__all__", "__file__", "__getattr__", "__main__", "__missing__", "__post_init__", "__version__"),
    *("_asdict", "_exit", "_fields", "_getframe", "_replace"),
}
"""Names with a leading underscore that Python documents."""


class Source(NamedTuple):
    """A file of the product."""

    path: Path
    """Relative to the root of the repository."""
    module: str
    tree: ast.Module
    lines: list[str]

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


class Import(NamedTuple):
    """A module that a statement imports, or imports from."""

    module: str
    node: ast.Import | ast.ImportFrom
    in_function: bool


@cache
def sources() -> list[Source]:
    """Return all files of the product."""
    files: list[Source] = []
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text, relative = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        files.append(Source(relative, module, ast.parse(text), text.splitlines()))
    return files


def imports(source: Source) -> list[Import]:
    """Return the modules that a file imports, those under `if TYPE_CHECKING` included.

    `from package import name` imports `package.name` if that is a file of the product.
    """
    modules = {source.module for source in sources()}
    result: list[Import] = []
    for node, in_function in _statements(source.tree, False):
        if isinstance(node, ast.Import):
            result += [Import(alias.name, node, in_function) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{source.place(node)}: imports are absolute"
            names = dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
            imported = dict.fromkeys(name if name in modules else node.module for name in names)
            result += [Import(module, node, in_function) for module in imported]
    return result


def _statements(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        yield from _statements(child, in_function or isinstance(child, ast.FunctionDef | ast.Lambda))


def prose(source: Source) -> Iterator[tuple[int, str]]:
    """Yield each docstring and comment of a file with its line number; string statements are docstrings."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case _:
                pass
    code = io.StringIO("\n".join(source.lines))
    for token in tokenize.generate_tokens(code.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def private_names() -> dict[str, list[str]]:
    """Map each private name of another library, dunder names included, to the places that use it.

    A use is an attribute, a keyword argument, a string (as for `getattr`), an imported name, or a part of an
    imported module's path. A name that the product also defines counts as ours and is not reported.
    """
    ours = _own_names()
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for node in ast.walk(source.tree):
            for name in _names(node):
                is_private = _PRIVATE.fullmatch(name) is not None and name not in ours
                if (is_private or _DUNDER.fullmatch(name)) and name not in DOCUMENTED:
                    # pyright does not know that each node with a name has a line.
                    places[name].append(source.place(node))  # pyright: ignore[reportArgumentType]
    return places


def _names(node: ast.AST) -> list[str]:
    """Return the names that a node uses, and the special methods that it defines."""
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
    """Return the names of functions, classes, arguments, variables and attributes of `self`.

    Not those that a class only declares, without a value: it inherits them from another library.
    """
    defined, declared = set[str](), set[str]()
    for node in (node for source in sources() for node in ast.walk(source.tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                defined.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                declared.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                defined.add(name)
            case _:
                pass
    return defined - declared
