"""Checks how much the product and the tests say per line and per statement.

    python .ci/density.py

Prints, per package and for its densest files:

    characters          per line of code: neither blank, nor a comment, nor a docstring;
                        without the indentation
    nodes               of the syntax tree per statement, except definitions and imports
    conditionals        conditional expressions per 100 statements
    comprehensions      and generator expressions, per 100 statements

Fails if a package is above its limits. A file with many nodes per statement does several things in
one statement: name a value, or write a loop.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from tokenize import COMMENT, generate_tokens

ROOT = Path(__file__).parents[1]
SHOWN_FILES = 5
SMALL_FILE = 20
"""Files with fewer statements are not judged alone."""

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_NOT_JUDGED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
_OTHER_STATEMENTS = ast.stmt | ast.excepthandler | ast.match_case
_SIGNS = ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop


@dataclass(frozen=True)
class Density:
    characters: float
    nodes: float
    conditionals: float
    comprehensions: float


@dataclass(frozen=True)
class Package:
    folders: tuple[str, ...]
    limits: Density
    nodes_per_file: float


PACKAGES = [
    Package(("plateau_jax", "torch_bridge"), Density(37, 6.2, 0.6, 4), nodes_per_file=10),
    Package(("tests",), Density(40, 8, 1, 4.5), nodes_per_file=12),
]


class Source:
    """The lines of code and the statements of one or more files."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.statements: list[ast.stmt] = []

    def read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.lines += _code_lines(text, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and _is_judged(node):
                self.statements.append(node)

    def add(self, source: "Source") -> None:
        self.lines += source.lines
        self.statements += source.statements

    def density(self) -> Density:
        nodes = [node for statement in self.statements for node in _expression_nodes(statement)]
        conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
        comprehensions = [node for node in nodes if isinstance(node, _COMPREHENSIONS)]
        count = max(1, len(self.statements))
        return Density(
            characters=sum(map(len, self.lines)) / max(1, len(self.lines)),
            nodes=len(nodes) / count,
            conditionals=100 * len(conditionals) / count,
            comprehensions=100 * len(comprehensions) / count,
        )


def _is_judged(statement: ast.stmt) -> bool:
    return not isinstance(statement, _NOT_JUDGED) and not _is_text(statement)


def _is_text(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _code_lines(text: str, tree: ast.AST) -> list[str]:
    lines = text.splitlines()
    for token in generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type == COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if _is_text(node):
            for row in range(node.lineno, node.end_lineno + 1):
                lines[row - 1] = ""
    stripped = [line.strip() for line in lines]
    return [line for line in stripped if line]


def _expression_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Iterate over the expressions of a statement, without the statements inside it."""
    for node in ast.iter_child_nodes(statement):
        if not isinstance(node, _OTHER_STATEMENTS | _SIGNS):
            yield node
            yield from _expression_nodes(node)


def check_package(package: Package) -> bool:
    """Print a package's density and its densest files; return True if it is within the limits."""
    of_package = Source()
    files: dict[str, Density] = {}
    for folder in package.folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = Source()
            source.read(path)
            of_package.add(source)
            if len(source.statements) >= SMALL_FILE:
                files[str(path.relative_to(ROOT))] = source.density()
    density = of_package.density()
    _print_row(" ".join(package.folders), density)
    densest = sorted(files, key=lambda name: files[name].nodes, reverse=True)
    for name in densest[:SHOWN_FILES]:
        _print_row(f"  {name}", files[name])
    is_within = True
    for value, limit in zip(astuple(density), astuple(package.limits), strict=True):
        is_within = is_within and value <= limit
    return is_within and files[densest[0]].nodes <= package.nodes_per_file


def _print_row(name: str, density: Density) -> None:
    columns = "".join(f"{value:16.1f}" for value in astuple(density))
    print(f"{name:56}{columns}")


if __name__ == "__main__":
    columns = "".join(f"{name:>16}" for name in Density.__annotations__)
    print(f"{'':56}{columns}")
    is_within = True
    for package in PACKAGES:
        is_within = check_package(package) and is_within
    if not is_within:
        sys.exit("Denser than the limits in .ci/density.py")
