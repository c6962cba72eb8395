"""How the files lie: floors, imports without circles, names, rooms."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from support.sources import PACKAGES, ROOT, Import, Source, imports, sources

# From the lowest up; a file imports none from above its own floor. Longer names go first.
_FLOORS = [
    ("plateau_jax.exact",),
    ("plateau_jax.levels",),
    ("plateau_jax.rows",),
    ("plateau_jax.segments",),
    ("plateau_jax.fixed_point",),
    ("plateau_jax.curve",),
    ("plateau_jax.branches", "plateau_jax.plateau_curve", "plateau_jax.staged"),
    ("torch_bridge.core",),
    ("torch_bridge.table",),
    ("torch_bridge.schedulers",),
    ("torch_bridge.distributed",),
    ("torch_bridge.training",),
    ("torch_bridge.loop",),
    ("torch_bridge.checkpointing",),
    ("torch_bridge.data",),
]

_REASON = re.compile(r"#.*\b(optional|start-?up|seconds?)\b")
_ABOUT_THE_HOUSE = {
    "conftest.py",
    "test_house.py",
    "test_imports.py",
    "test_private_names.py",
    "test_versions.py",
}


def _lines(wrong: list[str]) -> str:
    return "\n".join(["", *wrong])


def _package(module: str) -> str:
    return module.partition(".")[0]


def _own_imports(source: Source) -> Iterator[Import]:
    """Those of files of the product."""
    return (found for found in imports(source) if _package(found.module) in PACKAGES)


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Circles of a graph, the first file again at the end; of circles that share an edge one is found."""
    left, found = {name: set(others) for name, others in graph.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
            return found
        except CycleError as error:
            circle = error.args[1][::-1]  # as it is imported: each before the next
            found.append(circle)
            left[circle[0]].discard(circle[1])


def test_no_circle_of_imports() -> None:
    """Imports inside functions count too."""
    places = {
        (source.module, found.module): source.place(found.node)
        for source in sources()
        for found in _own_imports(source)
    }
    graph: dict[str, set[str]] = {source.module: set() for source in sources()}
    for importing, imported in places:
        graph[importing].add(imported)
    circles = [" -> ".join(places[pair] for pair in pairwise(circle)) for circle in _circles(graph)]
    assert not circles, _lines(circles)


def test_circles_are_found() -> None:
    assert _circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    (circle,) = _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    assert circle in (["b", "c", "b"], ["c", "b", "c"])
    assert len(_circles({"a": {"a", "b"}, "b": {"c"}, "c": {"b"}})) == 2


def _floor(module: str) -> int | None:
    """None for a file whose floor is not fixed: one of a package's own, or a part of the core."""
    for number, names in enumerate(_FLOORS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    return None


def test_no_import_from_a_higher_floor() -> None:
    wrong: list[str] = []
    for source in sources():
        for found in _own_imports(source):
            own, other = _floor(source.module), _floor(found.module)
            if own is not None and other is not None and other > own:
                wrong.append(f"{source.place(found.node)} imports {found.module}")
    assert not wrong, _lines(wrong)


def test_the_bridge_reaches_the_core_through_one_file() -> None:
    """And the core does not reach the bridge."""
    wrong = [
        f"{source.place(found.node)} imports {found.module}"
        for source in sources()
        for found in _own_imports(source)
        if _package(found.module) != _package(source.module) and source.module != "torch_bridge.core"
    ]
    assert not wrong, _lines(wrong)
    core = next(source for source in sources() if source.module == "torch_bridge.core")
    assert {_package(found.module) for found in imports(core)} <= {"plateau_jax", "typing"}


def test_no_file_imports_its_own_package() -> None:
    """Whose `__init__` imports all others, when it is asked to. `python -m` runs a file that may."""
    wrong = [
        source.place(found.node)
        for source in sources()
        for found in _own_imports(source)
        if found.module == _package(source.module) and source.path.name != "__main__.py"
    ]
    assert not wrong, _lines(wrong)


def _is_explained(source: Source, node: ast.Import | ast.ImportFrom) -> bool:
    """By a comment on the statement, or above it; one comment may stand above several."""
    lines = source.lines[node.lineno - 1 : node.end_lineno]
    if any(_REASON.search(line) for line in lines):
        return True
    for line in reversed(source.lines[: node.lineno - 1]):
        text = line.strip()
        if text.startswith("#") and _REASON.search(text):
            return True
        if not text.startswith(("#", "from ", "import ")):
            return False
    return False


def test_an_import_inside_a_function_says_why() -> None:
    wrong = [
        f"{source.place(found.node)} imports {found.module}"
        for source in sources()
        for found in imports(source)
        if found.in_function and not _is_explained(source, found.node)
    ]
    hint = "a comment there says which optional dependency, or start-up, it keeps away"
    assert not wrong, _lines([hint, *wrong])


def test_nothing_has_the_name_of_its_file() -> None:
    wrong = [
        source.place(node)
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == source.path.stem
    ]
    assert not wrong, _lines(wrong)


def test_rooms_hold_a_docstring_only() -> None:
    wrong = [
        source.place(node)
        for source in sources()
        if source.path.name == "__init__.py" and source.module not in PACKAGES
        for node in [*source.tree.body[1:], *([] if ast.get_docstring(source.tree) else source.tree.body[:1])]
    ]
    assert not wrong, _lines(wrong)


def test_every_test_lies_in_a_room() -> None:
    """But those of the house itself."""
    assert {path.name for path in Path(ROOT, "tests").glob("*.py")} == _ABOUT_THE_HOUSE
